// Memory that is still free, so that what does not fit is refused before it is asked for.
#pragma once

#include <cstddef>
#include <string>

#include "core/device.h"

namespace linnet {

// Bytes that a device has left; the largest number where the system does not tell. On a CPU the
// least of what the machine has with its swap space, of what the process's control groups allow,
// and of its limit of address space.
size_t free_memory(Device device);

// Bytes that freed tensors left for the next ones, where free_memory() does not count them.
size_t kept_memory(Device device);

// Whether a device has so many bytes left. Less than 64 MiB are not worth asking for: they are
// there.
bool has_memory(Device device, double bytes);

// Gives the system back the pages of the heap that hold nothing, after work whose large blocks are
// freed: they leave holes between smaller ones that stay, and a long run would grow by them.
void release_free_memory();

// "3.1 GiB", "17 MiB".
std::string memory_text(double bytes);

}  // namespace linnet
