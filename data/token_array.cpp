// Tokens in as few bytes as their vocabulary needs.
#include "data/token_array.h"

#include <bit>
#include <cstring>

#include "core/error.h"

namespace linnet {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are stored least byte first");

// Calls use(Id()) with the type in which ids are stored.
template <typename Use>
void with_stored_type(int32_t vocabulary_size, const Use& use) {
  if (vocabulary_size <= 1 << 8) return use(uint8_t());
  if (vocabulary_size <= 1 << 16) return use(uint16_t());
  use(int32_t());
}

// Writes the ids and returns the largest; one below zero counts as large.
template <typename Id>
uint32_t widen(const char* stored, std::span<int32_t> ids) {
  uint32_t largest = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    Id id;
    std::memcpy(&id, stored + i * sizeof(Id), sizeof(Id));
    ids[i] = id;
    largest = std::max(largest, static_cast<uint32_t>(ids[i]));
  }
  return largest;
}

}  // namespace

int64_t token_bytes(int32_t vocabulary_size) {
  int64_t bytes = 0;
  with_stored_type(vocabulary_size, [&](auto id) { bytes = sizeof(id); });
  return bytes;
}

void append_tokens(std::span<const int32_t> ids, int32_t vocabulary_size, std::string& stored) {
  with_stored_type(vocabulary_size, [&](auto type) {
    using Id = decltype(type);
    size_t at = stored.size();
    stored.resize(at + ids.size() * sizeof(Id));
    for (const int32_t each : ids) {
      const auto id = static_cast<Id>(each);
      std::memcpy(stored.data() + at, &id, sizeof(Id));
      at += sizeof(Id);
    }
  });
}

TokenArray::TokenArray(std::string stored, int32_t vocabulary_size)
    : memory_(std::make_shared<const std::string>(std::move(stored))),
      size_(static_cast<int64_t>(memory_->size()) / token_bytes(vocabulary_size)),
      vocabulary_size_(vocabulary_size) {}

TokenArray::TokenArray(std::shared_ptr<const MappedFile> file, int64_t size,
                       int32_t vocabulary_size)
    : file_(std::move(file)), size_(size), vocabulary_size_(vocabulary_size) {}

void TokenArray::read(int64_t begin, std::span<int32_t> ids) const {
  const auto count = static_cast<int64_t>(ids.size());
  require(0 <= begin && begin <= size_ && count <= size_ - begin, count, " tokens from number ",
          begin, " on are asked for, there are ", size_);
  if (ids.empty()) return;
  const auto width = static_cast<size_t>(token_bytes(vocabulary_size_));
  if (file_ != nullptr) file_->require_whole();
  const std::string_view all = file_ != nullptr ? file_->bytes() : std::string_view(*memory_);
  const std::string_view stored =
      all.substr(static_cast<size_t>(begin) * width, ids.size() * width);
  uint32_t largest = 0;
  with_stored_type(vocabulary_size_,
                   [&](auto id) { largest = widen<decltype(id)>(stored.data(), ids); });
  if (file_ != nullptr) file_->release(stored);
  if (largest < static_cast<uint32_t>(vocabulary_size_)) return;
  const std::string place = file_ != nullptr ? file_->path() : "tokens";
  throw Error(
      Cause{ErrorCode::malformed, "", place},
      concat(place, ": holds ids outside the vocabulary (damaged, or changed while in use)"));
}

}  // namespace linnet
