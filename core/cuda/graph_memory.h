// The memory of captured graphs.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace linnet::cuda {

// A replay writes to the addresses of its capture, so memory of a capture's tensors must stay
// allocated while a graph may be launched: it is kept here, apart from stream-ordered memory, and
// released when the graphs are gone. Inside a capture, released memory is reused. One GraphMemory
// can serve many graphs whose launches follow one another: no graph may read values that another
// left there.
class GraphMemory {
 public:
  // Where memory comes from: take(bytes) returns nullptr when there is none left; give(memory,
  // bytes) gets it back.
  using Take = std::function<void*(size_t)>;
  using Give = std::function<void(void*, size_t)>;
  GraphMemory(Take take, Give give);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  // A block that no other tensor has, from the smallest free region that is large enough, or new;
  // nullptr when there is none left.
  void* allocate(size_t bytes);
  void release(void* block);
  // Calls `give` in the destructor: for memory from elsewhere that a captured graph uses.
  void keep(std::function<void()> give);
  // Bytes of all its segments.
  size_t bytes() const { return bytes_; }

 private:
  struct Region {
    size_t bytes;
    bool free;
    bool begins;  // a segment: memory before it is not ours
  };
  void* new_segment(size_t bytes);

  Take take_;
  Give give_;
  std::map<char*, Region> regions_;  // neighbours of a segment are neighbours here
  std::vector<std::pair<void*, size_t>> segments_;
  std::vector<std::function<void()>> kept_;
  size_t bytes_ = 0;
};

}  // namespace linnet::cuda
