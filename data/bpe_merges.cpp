// Byte-pair merging with a heap of candidate pairs over a linked list of symbols.
#include "data/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "core/error.h"
#include "data/lines.h"

namespace linnet {
namespace {

uint64_t pack(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

// byte_of[c] for the characters U+0000..U+0143 of GPT-2's spelling, -1 for none.
std::vector<int> make_byte_of_character() {
  std::vector<int> byte_of(256 + 68, -1);
  int moved = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    byte_of[static_cast<size_t>(itself ? byte : 256 + moved++)] = byte;
  }
  return byte_of;
}

}  // namespace

bool bytes_of_bpe_spelling(std::string_view spelling, std::string& bytes) {
  static const std::vector<int> byte_of = make_byte_of_character();
  bytes.clear();
  for (size_t i = 0; i < spelling.size(); ++i) {
    uint32_t character = static_cast<unsigned char>(spelling[i]);
    if (character >= 0x80) {
      // Two-byte UTF-8 reaches U+07FF, more than the spelling needs.
      if ((character & 0xE0u) != 0xC0u || i + 1 >= spelling.size()) return false;
      const auto low = static_cast<unsigned char>(spelling[++i]);
      if ((low & 0xC0u) != 0x80u) return false;
      character = ((character & 0x1Fu) << 6) | (low & 0x3Fu);
    }
    if (character >= byte_of.size() || byte_of[character] < 0) return false;
    bytes += static_cast<char>(byte_of[character]);
  }
  return true;
}

BpeMerges::BpeMerges(const std::unordered_map<std::string, int32_t>& ids, std::string_view merges,
                     std::string_view vocabulary_name, std::string_view merges_name) {
  byte_ids_.resize(256);
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(std::string(1, static_cast<char>(byte)));
    require(found != ids.end(), Cause{ErrorCode::malformed, "", vocabulary_name}, vocabulary_name,
            ": the vocabulary has no entry for the byte ", byte);
    byte_ids_[static_cast<size_t>(byte)] = found->second;
  }
  // Each merge makes another of the tokens, and each stands on a line.
  const auto line_count = static_cast<size_t>(std::count(merges.begin(), merges.end(), '\n')) + 1;
  table_.resize(std::bit_ceil(2 * std::min(line_count, ids.size()) + 2));

  std::unordered_set<int32_t> made(byte_ids_.begin(), byte_ids_.end());
  std::string left, right;
  uint32_t rank = 0;
  for (TextLines lines(without_byte_order_mark(merges)); lines.next();) {
    const std::string_view text = lines.line();
    if (text.empty() || (lines.number() == 1 && text.starts_with("#version"))) continue;
    const size_t space = text.find(' ');
    const auto require_line = [&](bool sound, const char* why) {
      if (sound) return;
      throw Error({ErrorCode::malformed, "", concat(merges_name, ":", lines.number())},
                  concat(merges_name, ": line ", lines.number(), " of the merges ", why));
    };
    require_line(
        space != std::string_view::npos && bytes_of_bpe_spelling(text.substr(0, space), left) &&
            bytes_of_bpe_spelling(text.substr(space + 1), right) && !left.empty() && !right.empty(),
        "must be two token spellings and a space between");
    const auto a = ids.find(left), b = ids.find(right), ab = ids.find(left + right);
    require_line(a != ids.end() && b != ids.end() && ab != ids.end(),
                 "uses a token that the vocabulary lacks");
    // Parts made by earlier lines are what lets a heap reproduce the round-by-round definition.
    require_line(made.contains(a->second) && made.contains(b->second),
                 "uses a token that no earlier line makes");
    require_line(made.insert(ab->second).second, "makes a token that an earlier line already made");
    insert({pack(a->second, b->second), rank++, ab->second});
  }
  require(rank > 0, Cause{ErrorCode::malformed, "", merges_name}, merges_name,
          ": expected merges, found none; the file is empty or truncated");
}

std::vector<bool> BpeMerges::reached(size_t count) const {
  std::vector<bool> reached(count, false);
  const auto add = [&](int32_t id) {
    if (id >= 0 && static_cast<size_t>(id) < count) reached[static_cast<size_t>(id)] = true;
  };
  for (const int32_t id : byte_ids_) add(id);
  for (const Merge& merge : table_) add(merge.result);
  return reached;
}

const BpeMerges::Merge* BpeMerges::find(int32_t left, int32_t right) const {
  const uint64_t pair = pack(left, right);
  const size_t mask = table_.size() - 1;
  for (size_t slot = (pair * 0x9E3779B97F4A7C15u) >> 32 & mask;; slot = (slot + 1) & mask) {
    if (table_[slot].result < 0) return nullptr;
    if (table_[slot].pair == pair) return &table_[slot];
  }
}

void BpeMerges::insert(const Merge& merge) {
  const size_t mask = table_.size() - 1;
  size_t slot = (merge.pair * 0x9E3779B97F4A7C15u) >> 32 & mask;
  while (table_[slot].result >= 0) slot = (slot + 1) & mask;
  table_[slot] = merge;
}

void BpeMerges::encode_piece(std::string_view piece, Workspace& workspace,
                             std::vector<int32_t>& ids) const {
  using Candidate = Workspace::Candidate;
  auto& symbols = workspace.symbols;
  auto& heap = workspace.heap;
  require(piece.size() < (size_t{1} << 31), Cause{ErrorCode::out_of_range}, "a piece of text of ",
          piece.size(), " bytes without a word boundary is too long to encode");
  const auto count = static_cast<int32_t>(piece.size());
  symbols.resize(piece.size());
  heap.clear();
  // Lowest rank first, then leftmost: std heaps keep the "largest" in front.
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto candidate_at = [&](int32_t position) {
    const auto& symbol = symbols[static_cast<size_t>(position)];
    if (symbol.next < 0) return Candidate{0, -1, 0, 0};
    const int32_t right = symbols[static_cast<size_t>(symbol.next)].id;
    const Merge* merge = find(symbol.id, right);
    return merge == nullptr ? Candidate{0, -1, 0, 0}
                            : Candidate{merge->rank, position, symbol.id, right};
  };
  for (int32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(piece[static_cast<size_t>(i)]);
    symbols[static_cast<size_t>(i)] = {byte_ids_[byte], i - 1, i + 1 < count ? i + 1 : -1};
  }
  for (int32_t i = 0; i + 1 < count; ++i)
    if (const Candidate c = candidate_at(i); c.position >= 0) heap.push_back(c);
  std::make_heap(heap.begin(), heap.end(), later);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate best = heap.back();
    heap.pop_back();
    auto& left = symbols[static_cast<size_t>(best.position)];
    // A candidate is stale when either of its symbols has been merged meanwhile.
    if (left.id != best.left || left.next < 0) continue;
    auto& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != best.right) continue;
    left.id = find(best.left, best.right)->result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.position;
    for (const int32_t position : {left.previous, best.position}) {
      if (position < 0) continue;
      const Candidate c = candidate_at(position);
      if (c.position < 0) continue;
      heap.push_back(c);
      std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next)
    ids.push_back(symbols[static_cast<size_t>(i)].id);
}

}  // namespace linnet
