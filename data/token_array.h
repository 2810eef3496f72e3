// The tokens of a split, in memory or in a mapped file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapped_file.h"

namespace linnet {

// Bytes of an id of such a vocabulary, where tokens are stored: 1, 2 or 4.
int64_t token_bytes(int32_t vocabulary_size);
// Appends ids as they are stored: numbers of token_bytes(), least byte first.
void append_tokens(std::span<const int32_t> ids, int32_t vocabulary_size, std::string& stored);

// Ids of a vocabulary. Copies share the tokens. Any thread.
class TokenArray {
 public:
  TokenArray() = default;  // of none
  // Stored tokens in memory.
  TokenArray(std::string stored, int32_t vocabulary_size);
  // The first `size` tokens of a file that holds as many.
  TokenArray(std::shared_ptr<const MappedFile> file, int64_t size, int32_t vocabulary_size);

  int64_t size() const { return size_; }
  // Copies the ids from `begin` on into all of `ids`. Of a file, nothing of it stays in memory.
  // Throws Error when they are not all there, or when the file was changed to hold others.
  void read(int64_t begin, std::span<int32_t> ids) const;
  // Calls visit(id) for the tokens begin .. end-1.
  template <typename Visit>
  void for_each(int64_t begin, int64_t end, const Visit& visit) const;

 private:
  std::shared_ptr<const std::string> memory_;
  std::shared_ptr<const MappedFile> file_;
  int64_t size_ = 0;
  int32_t vocabulary_size_ = 1;
};

}  // namespace linnet

template <typename Visit>
void linnet::TokenArray::for_each(int64_t begin, int64_t end, const Visit& visit) const {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int32_t> ids;
  for (; begin < end; begin += kBlock) {
    ids.resize(static_cast<size_t>(std::min(kBlock, end - begin)));
    read(begin, ids);
    for (const int32_t id : ids) visit(id);
  }
}
