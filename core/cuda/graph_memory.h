// The memory of captured graphs.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace linnet::cuda {

// A replay writes where its capture wrote, so that what tensors of a capture occupied must stay
// where it is for as long as a graph may be launched: it is kept here, apart from stream-ordered
// memory, and given back when the graphs are gone. Inside a capture, memory that was released is
// used again. One GraphMemory can serve many graphs whose launches follow one another: none finds
// there what another left.
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

  // A block that no other tensor has, from the smallest free piece that is large enough, or new;
  // nullptr when there is none left.
  void* allocate(size_t bytes);
  void release(void* block);
  // Calls `give` at the end: for memory from elsewhere that a captured graph uses.
  void keep(std::function<void()> give);
  // All that it took.
  size_t bytes() const { return bytes_; }

 private:
  struct Piece {
    size_t bytes;
    bool free;
    bool begins;  // a segment that was taken: what lies before it is not ours
  };
  void* new_segment(size_t bytes);

  Take take_;
  Give give_;
  std::map<char*, Piece> pieces_;  // neighbours of a segment are neighbours here
  std::vector<std::pair<void*, size_t>> segments_;
  std::vector<std::function<void()>> kept_;
  size_t bytes_ = 0;
};

}  // namespace linnet::cuda
