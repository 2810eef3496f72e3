// The CUDA runtime as linnet uses it: streams, stream-ordered memory, copies, device facts. Free of
// CUDA's headers. runtime_cuda.cpp calls CUDA; runtime_emulated.cpp has pretended devices in host
// memory. Every status is checked where it arises and thrown as Error with CUDA's own text.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/error.h"

namespace linnet::cuda {

struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  size_t memory = 0;         // bytes
  int multiprocessors = 0;
};

struct Versions {
  std::string driver;  // the CUDA version that the driver supports, "13.0"; "none" without a driver
  std::string runtime;  // the CUDA version that linnet was built with
};

// Devices that can be used; empty, with the reason in `why`, when there is no driver or it is too
// old for this build.
std::vector<DeviceFacts> devices(std::string* why = nullptr);
Versions versions();

// The device and stream that launches, copies and allocations of this thread use: cuda:0 until it
// says otherwise. Streams are cudaStream_t behind a pointer that needs no header.
int current_device();
void set_device(int index);
void* stream();
// A device's stream belongs to the thread that first submits to it: allocations, copies, launches
// and waiting of another thread throw Error. This waits for the work of this thread's device; the
// next thread that submits then owns its stream. Tensors of a device are to be released by the
// owner, too.
void hand_over_stream();
// Throws Error when this thread's work goes to another device than the one of its tensors.
void require_current(int index);

// Memory in stream order: an allocation may be used by work submitted after it, and released
// memory is reused by later work only. allocate returns nullptr when there is none left.
void* allocate(size_t bytes);
void release(void* memory) noexcept;
// Free bytes of the device, memory included that its pool keeps for reuse.
size_t free_bytes();

// Submitted on the current stream. to_host waits until the data are there; from_host returns when
// `from` may be changed again: small copies (batches) go through a ring of pinned memory and never
// wait for the device.
void copy(void* to, const void* from, size_t bytes);
void copy_from_host(void* to, const void* from, size_t bytes);
void copy_to_host(void* to, const void* from, size_t bytes);
void fill_bytes(void* memory, int value, size_t bytes);
// Waits for everything submitted on the current stream.
void synchronize();

// Captures, for core/cuda/graph.h: from begin_capture on, the work that this thread submits to the
// current stream is recorded instead of run. Work that cannot be recorded throws NotCapturable:
// waiting, and copies between host and device.
class NotCapturable : public Error {
 public:
  using Error::Error;
};
void begin_capture();
// Ends it and returns the recorded graph, for launch_graph.
void* end_capture();
// Ends a capture that failed.
void abandon_capture() noexcept;
bool capturing();
// How many kernels, copies and fills were recorded.
size_t recorded(void* graph);
void launch_graph(void* graph);
void destroy_graph(void* graph) noexcept;
// Memory outside stream order, also while capturing; nullptr when there is none left.
void* allocate_lasting(size_t bytes);
void release_lasting(void* memory) noexcept;
// Throws NotCapturable while this thread captures: for `what` the host must run, in every replay.
inline void refuse_capture(const char* what) {
  if (capturing()) throw NotCapturable(concat(what, " cannot be captured in a CUDA graph"));
}

// For launch(): throws Error naming the kernel when the last launch was refused.
void check_launch(const char* kernel);
void allow_shared_memory(const char* name, const void* kernel, size_t bytes);
// Bytes of shared memory that a block can have on this thread's device.
size_t shared_memory_limit();
// Records the kernel's name where LINNET_LAUNCH_LOG names a folder, for the check that tests launch
// every kernel.
void note_launch(const char* kernel);

}  // namespace linnet::cuda
