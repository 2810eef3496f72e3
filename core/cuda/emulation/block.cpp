// The scheduler: runs the blocks of a launch one after another, the threads of a block in the order
// that LINNET_EMULATION_ORDER names (fifo, lifo, random:SEED), and combines the values that warps
// exchange.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/emulation/fibers.h"
#include "core/cuda/emulation/sanitizers.h"
#include "core/cuda/emulation/shared_memory.h"
#include "core/cuda/emulation/tensor_cores.h"
#include "core/cuda/refusals.h"
#include "core/cuda/runtime.h"
#include "core/error.h"

// See switch_to.
#define LINNET_INLINE [[gnu::always_inline]] inline

namespace linnet::emulation {
namespace {

constexpr size_t kQueue = 2048;  // a block has at most 1024 threads

using Combine = void (*)(unsigned mask, Fiber** lanes);
struct Meeting {
  unsigned mask, arrived;
  Combine combine;  // null: __syncwarp
  Site site;
  void* token;
};
struct Warp {
  unsigned exited = 0, count = 0;
  Fiber* lanes[32] = {};
  std::vector<Meeting> meetings;
};

enum class Order : uint8_t { fifo, lifo, random };

std::mutex launch_mutex;
Order order;
uint64_t random_state;
std::vector<Warp> warps;
Fiber* ready[kQueue];  // ring of threads that can run
size_t head, tail;
const std::function<void()>* body;
std::string error;
int live, at_barrier, true_count, last_count;
unsigned barriers;
Site barrier_site;
size_t shared_requested;

uint64_t next_random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

// In static memory: a failing thread's stack is abandoned, so it must own nothing.
const char* text_of(const Site& site) {
  static char buffers[2][256];
  static int turn;
  char* buffer = buffers[turn ^= 1];
  std::snprintf(buffer, sizeof buffers[0], "%s %s:%d", site.what, site.file, site.line);
  return buffer;
}

bool same_place(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

// Runs some other thread that can, or returns to run_block() when there is none.
LINNET_INLINE void run_next() {
  if (head == tail) return switch_to(&host_fiber);
  const size_t pick = order == Order::random ? head + next_random() % (tail - head)
                      : order == Order::lifo ? tail - 1
                                             : head;
  Fiber* chosen = ready[pick % kQueue];
  if (order == Order::lifo) {
    --tail;
  } else {
    ready[pick % kQueue] = ready[head % kQueue];
    ++head;
  }
  if (chosen != current) switch_to(chosen);
}

LINNET_INLINE void wait(Wait kind, const Site& site) {
  current->waits = kind;
  current->site = site;
  run_next();
}

void wake(Fiber* sleeper) {
  sleeper->waits = Wait::no;
  ready[tail++ % kQueue] = sleeper;
}

void complete_barrier() {
  last_count = std::exchange(true_count, 0);
  at_barrier = 0;
  ++barriers;
  for (Warp& warp : warps) {
    for (Fiber* lane : warp.lanes) {
      if (lane != nullptr && lane->waits == Wait::block) wake(lane);
    }
  }
}

void complete(Warp& warp, size_t index) {
  const Meeting meeting = warp.meetings[index];
  warp.meetings[index] = warp.meetings.back();
  warp.meetings.pop_back();
  if (meeting.combine != nullptr) meeting.combine(meeting.arrived, warp.lanes);
  for (unsigned l = 0; l < 32; ++l) {
    if ((meeting.arrived >> l & 1) != 0 && warp.lanes[l] != current) wake(warp.lanes[l]);
  }
}

bool is_complete(const Warp& warp, const Meeting& meeting) {
  return ((meeting.arrived | warp.exited) & meeting.mask) == meeting.mask;
}

// Returns once every live lane of the mask is here; the last one runs combine(), which reads and
// writes through the requests of the lanes.
LINNET_INLINE void meet(unsigned mask, const Site& site, Combine combine) {
  Warp& warp = warps[static_cast<size_t>(current->index / 32)];
  const unsigned bit = 1u << (current->index % 32);
  if ((mask & bit) == 0) {
    fail("%s: the calling lane %d is not in mask %08x", text_of(site), lane(), mask);
  }
  size_t i = 0;
  while (i < warp.meetings.size() && warp.meetings[i].mask != mask) ++i;
  if (i == warp.meetings.size()) {
    // A fresh token for each meeting: with one, a later meeting would hide races before it.
    const size_t token = 4 + static_cast<size_t>(current->index / 32 * 16) + warp.count++ % 16;
    warp.meetings.push_back({mask, 0, combine, site, order_token(token)});
  }
  Meeting& meeting = warp.meetings[i];
  if (meeting.combine != combine || (combine != nullptr && !same_place(meeting.site, site))) {
    fail("warp %d diverged: %s meets %s", current->index / 32, text_of(site),
         text_of(meeting.site));
  }
  meeting.arrived |= bit;
  void* token = combine != nullptr ? nullptr : meeting.token;  // only __syncwarp orders memory
  if (token != nullptr) order_release(token);
  if (is_complete(warp, meeting)) {
    complete(warp, i);
  } else {
    wait(Wait::warp, site);
  }
  if (token != nullptr) order_acquire(token);
}

void thread_exits() {
  Warp& warp = warps[static_cast<size_t>(current->index / 32)];
  warp.exited |= 1u << (current->index % 32);
  for (size_t i = 0; i < warp.meetings.size();) {
    if (is_complete(warp, warp.meetings[i])) {
      complete(warp, i);
    } else {
      ++i;
    }
  }
  --live;
  if (live > 0 && at_barrier == live) complete_barrier();
}

// The endless loop of every fiber.
void run_threads() {
  for (;; run_next()) {
    order_acquire(start_token);
    (*body)();
    order_release(end_token);
    thread_exits();
  }
}

void describe_deadlock(int threads) {
  error = concat("deadlock in block ", blockIdx.x, ", ", live, " of ", threads, " threads wait:");
  std::map<std::string, int> where;
  for (const Warp& warp : warps) {
    for (const Fiber* lane : warp.lanes) {
      if (lane != nullptr && lane->waits != Wait::no) ++where[text_of(lane->site)];
    }
  }
  for (const auto& [site, count] : where) error += concat(" ", count, " at ", site);
}

void run_block(int threads) {
  for (Warp& warp : warps) {
    warp.exited = warp.count = 0;
    warp.meetings.clear();
    std::fill(std::begin(warp.lanes), std::end(warp.lanes), nullptr);
  }
  live = threads;
  at_barrier = true_count = 0;
  barriers = 0;
  head = tail = 0;
  renew_shared(shared_requested);
  order_release(start_token);
  // So that a thread of two blocks is not the same thread to TSan.
  const size_t shift = kTsan ? next_random() : 0;
  const auto width = static_cast<int>(blockDim.x), height = static_cast<int>(blockDim.y);
  for (int t = 0; t < threads; ++t) {
    Fiber* lane = fiber((static_cast<size_t>(t) + shift) % static_cast<size_t>(threads));
    lane->index = t;
    lane->thread = {static_cast<unsigned>(t % width), static_cast<unsigned>(t / width % height),
                    static_cast<unsigned>(t / (width * height))};
    warps[static_cast<size_t>(t / 32)].lanes[t % 32] = lane;
    wake(lane);
  }
  if (threads % 32 != 0) warps[static_cast<size_t>(threads / 32)].exited = ~0u << (threads % 32);
  run_next();
  if (live > 0 && error.empty()) describe_deadlock(threads);
}

void read_order() {
  const char* text = std::getenv("LINNET_EMULATION_ORDER");
  const std::string mode = text != nullptr ? text : "fifo";
  const bool seeded = mode.rfind("random:", 0) == 0;
  require(seeded || mode == "fifo" || mode == "lifo", "LINNET_EMULATION_ORDER is '", mode,
          "'; expected fifo, lifo or random:SEED");
  order = seeded ? Order::random : mode == "lifo" ? Order::lifo : Order::fifo;
  const uint64_t seed = seeded ? std::strtoull(mode.c_str() + 7, nullptr, 10) : 0;
  random_state = 0x9E3779B97F4A7C15u * (1 + seed);
}

}  // namespace

void require_launchable(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
  const size_t threads = size_t{block.x} * block.y * block.z;
  require(threads > 0 && threads <= 1024 && block.z <= 64 && grid.x > 0 && grid.y > 0 &&
              grid.z > 0 && grid.x <= 2147483647u && grid.y <= 65535 && grid.z <= 65535,
          "kernel ", kernel, ": a GPU refuses a grid of ", grid.x, " x ", grid.y, " x ", grid.z,
          " blocks of ", threads, " threads");
  cuda::require_shared_memory(kernel, shared_bytes, cuda::shared_memory_limit());
}

void run(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes,
         const std::function<void()>& launched) {
  const std::lock_guard lock(launch_mutex);
  const size_t threads = size_t{block.x} * block.y * block.z;
  read_order();
  grow_fibers(threads, run_threads);
  warps.resize((threads + 31) / 32);
  for (Warp& warp : warps) warp.meetings.reserve(32);
  body = &launched;
  blockDim = block;
  gridDim = grid;
  shared_requested = shared_bytes;
  for (unsigned z = 0; z < grid.z && error.empty(); ++z) {
    for (unsigned y = 0; y < grid.y && error.empty(); ++y) {
      for (unsigned x = 0; x < grid.x && error.empty(); ++x) {
        blockIdx = {x, y, z};
        run_block(static_cast<int>(threads));
      }
    }
  }
  if (!error.empty()) drop_fibers();
  order_acquire(end_token);
  if (!error.empty()) {
    throw Error(concat("kernel ", kernel, ": ", std::exchange(error, std::string())));
  }
}

void fail(const char* format, ...) {
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  require(current != &host_fiber, message);
  error = concat(message, " [block ", blockIdx.x, ", thread ", current->index, "]");
  switch_to(&host_fiber);
  std::abort();
}

int lane() {
  return current->index % 32;
}

int barrier(bool predicate, Site site) {
  if (at_barrier > 0 && !same_place(site, barrier_site)) {
    fail("divergent barriers: %s and %s", text_of(barrier_site), text_of(site));
  }
  barrier_site = site;
  true_count += predicate ? 1 : 0;
  // Two alternating tokens: with one, a thread already at the next barrier would hide its races.
  void* token = order_token(barriers % 2);
  order_release(token);
  if (++at_barrier == live) {
    complete_barrier();
  } else {
    wait(Wait::block, site);
  }
  order_acquire(token);
  return last_count;
}

void sync_warp(unsigned mask, Site site) {
  meet(mask, site, nullptr);
}

void fence() {
  order_release(order_token(2));
  order_acquire(order_token(2));
}

unsigned ballot(unsigned mask, bool predicate, Site site) {
  unsigned result = 0;
  current->request.source = predicate ? 1 : 0;
  current->request.out = &result;
  const Combine combine = [](unsigned arrived, Fiber** lanes) {
    unsigned bits = 0;
    for (int l = 0; l < 32; ++l) {
      if ((arrived >> l & 1) != 0 && lanes[l]->request.source != 0) bits |= 1u << l;
    }
    for (int l = 0; l < 32; ++l) {
      if ((arrived >> l & 1) != 0) *static_cast<unsigned*>(lanes[l]->request.out) = bits;
    }
  };
  meet(mask, site, combine);
  return result;
}

void combine_lanes(Site site, void* value, size_t bytes, void (*fold)(void* values)) {
  const Combine combine = [](unsigned arrived, Fiber** lanes) {
    if (arrived != ~0u) fail("a sum over a warp in which only lanes %08x take part", arrived);
    const size_t words = lanes[0]->request.bytes / 4;
    alignas(8) uint32_t values[32 * 2];
    // volatile: no memcpy, which TSan would see.
    for (size_t l = 0; l < 32; ++l) {
      const auto* from = static_cast<const volatile uint32_t*>(lanes[l]->request.in);
      for (size_t word = 0; word < words; ++word) values[l * words + word] = from[word];
    }
    lanes[0]->request.fold(values);
    for (size_t l = 0; l < 32; ++l) {
      auto* to = static_cast<volatile uint32_t*>(lanes[l]->request.out);
      for (size_t word = 0; word < words; ++word) to[word] = values[word];
    }
  };
  Request& request = current->request;
  request.in = request.out = value;
  request.bytes = bytes;
  request.fold = fold;
  meet(~0u, site, combine);
}

void exchange_lanes(Site site, const void* in, size_t in_bytes, void* out, size_t out_bytes,
                    void (*exchange)(const void* in, void* out)) {
  const Combine combine = [](unsigned arrived, Fiber** lanes) {
    const Request& first = lanes[0]->request;
    if (arrived != ~0u) fail("an exchange of a warp in which only lanes %08x take part", arrived);
    const size_t in_words = first.bytes / 4, out_words = first.out_bytes / 4;
    alignas(16) uint32_t all_in[32 * kMaxExchanged / 4], all_out[32 * kMaxExchanged / 4];
    // volatile: no memcpy, which TSan would see.
    for (size_t l = 0; l < 32; ++l) {
      const auto* from = static_cast<const volatile uint32_t*>(lanes[l]->request.in);
      for (size_t word = 0; word < in_words; ++word) all_in[l * in_words + word] = from[word];
    }
    first.exchange(all_in, all_out);
    for (size_t l = 0; l < 32; ++l) {
      auto* to = static_cast<volatile uint32_t*>(lanes[l]->request.out);
      for (size_t word = 0; word < out_words; ++word) to[word] = all_out[l * out_words + word];
    }
  };
  Request& request = current->request;
  request.in = in;
  request.bytes = in_bytes;
  request.out = out;
  request.out_bytes = out_bytes;
  request.exchange = exchange;
  meet(~0u, site, combine);
}

void gather(unsigned mask, Site site, const void* in, size_t bytes, void* out, int source) {
  const Combine combine = [](unsigned arrived, Fiber** lanes) {
    for (int l = 0; l < 32; ++l) {
      if ((arrived >> l & 1) == 0) continue;
      const Request& request = lanes[l]->request;
      if ((arrived >> request.source & 1) == 0) {
        fail("lane %d reads lane %d, which takes no part in the collective", l, request.source);
      }
      // volatile: no memcpy, which TSan would see.
      const auto* from = static_cast<const volatile uint32_t*>(lanes[request.source]->request.in);
      auto* to = static_cast<volatile uint32_t*>(request.out);
      for (size_t word = 0; word < request.bytes / 4; ++word) to[word] = from[word];
    }
  };
  Request& request = current->request;
  request.in = in;
  request.out = out;
  request.bytes = bytes;
  request.source = source;
  meet(mask, site, combine);
}

}  // namespace linnet::emulation
