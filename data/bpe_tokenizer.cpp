// GPT-2's tokenizer: splits text into pieces with PCRE2, merges each piece, remembers frequent
// ones.
#include "data/bpe_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <charconv>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/utf8.h"
#include "data/bpe_merges.h"
#include "data/preparation.h"

namespace linnet {
namespace {

constexpr uint64_t kFileLimitBytes = uint64_t{64} << 20;
// Of encoder.json, of which GPT-2's has 1 MB; parsed, it takes several times as much memory.
constexpr size_t kJsonLimitBytes = size_t{8} << 20;
constexpr std::string_view kEndOfText = "<|endoftext|>";

// Unicode White_Space, spelt out: PCRE2's own \s also has U+180E, which lost the property.
#define LINNET_WHITE                                                         \
  "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}" \
  "\\x{202f}\\x{205f}\\x{3000}"
constexpr const char* kPiecePattern =
    "'s|'t|'re|'ve|'m|'ll|'d"
    "| ?\\p{L}+"
    "| ?\\p{N}+"
    "| ?[^\\p{L}\\p{N}" LINNET_WHITE
    "]+"
    "|[" LINNET_WHITE "]+(?![^" LINNET_WHITE
    "])"
    "|[" LINNET_WHITE "]+";
#undef LINNET_WHITE

// The compiled piece pattern. Texts given to it must be valid UTF-8: PCRE2 crashes on others.
class PiecePattern {
 public:
  PiecePattern() {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPiecePattern), PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    require(code_ != nullptr, "PCRE2 refused the GPT-2 pattern at offset ", offset, " (error ",
            error, "); it must be built with Unicode support");
    // Where JIT is not available pcre2_match interprets: slower, same result.
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
  }
  ~PiecePattern() { pcre2_code_free(code_); }
  PiecePattern(const PiecePattern&) = delete;
  PiecePattern& operator=(const PiecePattern&) = delete;
  const pcre2_code* get() const { return code_; }

 private:
  pcre2_code* code_ = nullptr;
};

// A direct-mapped cache of the ids of short pieces: bounded size, a collision overwrites.
class PieceCache {
 public:
  // Appends the remembered ids and returns true, or returns false.
  bool find(std::string_view piece, uint64_t hash, std::vector<int32_t>& ids) const {
    const Slot& slot = slots_[hash % kSlots];
    if (slot.bytes != piece.size() || std::memcmp(slot.key.data(), piece.data(), piece.size()) != 0)
      return false;
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
    return true;
  }
  void store(std::string_view piece, uint64_t hash, std::span<const int32_t> ids) {
    if (ids.size() > kMaxIds) return;
    Slot& slot = slots_[hash % kSlots];
    slot.bytes = static_cast<uint8_t>(piece.size());
    slot.count = static_cast<uint8_t>(ids.size());
    std::copy(piece.begin(), piece.end(), slot.key.begin());
    std::copy(ids.begin(), ids.end(), slot.ids.begin());
  }
  static constexpr size_t kMaxBytes = 30;

 private:
  static constexpr size_t kMaxIds = 16, kSlots = size_t{1} << 15;  // 3 MiB
  struct Slot {
    uint8_t bytes = 0, count = 0;
    std::array<char, kMaxBytes> key;
    std::array<int32_t, kMaxIds> ids;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
};

// Work memory of one running encode.
struct Workspace {
  explicit Workspace(const pcre2_code* code)
      : match(pcre2_match_data_create_from_pattern(code, nullptr)) {
    require(match != nullptr, "out of memory for the GPT-2 tokenizer");
  }
  ~Workspace() { pcre2_match_data_free(match); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  pcre2_match_data* match;
  PieceCache cache;
  BpeMerges::Workspace merging;
};

// Byte strings to ids, from encoder.json.
std::unordered_map<std::string, int32_t> parse_vocabulary(const std::string& encoder_json,
                                                          std::string_view what) {
  const JsonValue json = parse_json(encoder_json, std::string(what), {kJsonLimitBytes, 2});
  require(json.is_object() && json.size() > 0, Cause{ErrorCode::malformed, "", what}, what,
          ": expected a JSON object from token spellings to ids; the file is of another kind");
  std::unordered_map<std::string, int32_t> ids;
  std::vector<bool> taken(json.size(), false);
  std::string bytes;
  for (const auto& [spelling, value] : json.members()) {
    const bool whole = value.kind() == JsonValue::Kind::integer && value.integer() >= 0;
    const size_t id = whole ? static_cast<size_t>(value.integer()) : taken.size();
    require(id < taken.size() && !taken[id], Cause{ErrorCode::out_of_range, spelling, what}, what,
            ": the ids must be 0 to ", taken.size() - 1, ", each once; '", spelling,
            "' breaks this");
    taken[id] = true;
    require(bytes_of_bpe_spelling(spelling, bytes) &&
                ids.emplace(bytes, static_cast<int32_t>(id)).second,
            Cause{ErrorCode::malformed, spelling, what}, what, ": '", spelling,
            "' is not the spelling of a byte string of its own");
  }
  return ids;
}

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(std::string encoder_json, std::string merges_text,
               const std::unordered_map<std::string, int32_t>& ids,
               std::string_view vocabulary_name, std::string_view merges_name)
      : encoder_json_(std::move(encoder_json)),
        merges_text_(std::move(merges_text)),
        merges_(ids, merges_text_, vocabulary_name, merges_name),
        bytes_of_(ids.size()) {
    for (const auto& [bytes, id] : ids) bytes_of_[static_cast<size_t>(id)] = bytes;
    if (const auto found = ids.find(std::string(kEndOfText)); found != ids.end()) {
      eos_ = found->second;
      bytes_of_[static_cast<size_t>(eos_)].clear();
    }
  }

  std::string_view kind() const override { return "gpt2"; }
  int32_t vocabulary_size() const override { return static_cast<int32_t>(bytes_of_.size()); }
  int32_t eos_id() const override { return eos_; }
  std::vector<bool> reached() const { return merges_.reached(bytes_of_.size()); }

 protected:
  void encode_impl(std::string_view text, std::vector<int32_t>& ids, UnknownWords*) const override {
    require_utf8(text, "text for the gpt2 tokenizer");
    ids.reserve(text.size() / 3);
    std::unique_ptr<Workspace> workspace = acquire();
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(workspace->match);
    constexpr size_t kReportEvery = 1 << 16;
    size_t reported = 0;
    for (size_t at = 0; at < text.size(); at = span[1]) {
      if (at - reported >= kReportEvery) report_bytes_done(reported = at);
      const int matched =
          pcre2_match(pattern_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED,
                      workspace->match, nullptr);
      require(matched > 0 && span[1] > at, "PCRE2 failed (code ", matched, ") at byte ", at,
              " of the text");
      encode_piece(text.substr(at, span[1] - at), *workspace, ids);
    }
    release(std::move(workspace));
  }
  void append_bytes(int32_t id, std::string& text) const override {
    text += bytes_of_[static_cast<size_t>(id)];
  }
  std::string payload() const override {
    return concat(encoder_json_.size(), "\n", encoder_json_, merges_text_);
  }

 private:
  void encode_piece(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const {
    if (piece.size() > PieceCache::kMaxBytes)
      return merges_.encode_piece(piece, workspace.merging, ids);
    const uint64_t hash = hash64(piece);
    if (workspace.cache.find(piece, hash, ids)) return;
    const size_t before = ids.size();
    merges_.encode_piece(piece, workspace.merging, ids);
    workspace.cache.store(piece, hash, std::span(ids).subspan(before));
  }

  // Workspaces are lent to running encodes and come back with what their caches have learnt.
  std::unique_ptr<Workspace> acquire() const {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Workspace>(pattern_.get());
    auto workspace = std::move(idle_.back());
    idle_.pop_back();
    return workspace;
  }
  void release(std::unique_ptr<Workspace> workspace) const {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

  std::string encoder_json_, merges_text_;
  BpeMerges merges_;
  std::vector<std::string> bytes_of_;
  int32_t eos_ = -1;
  PiecePattern pattern_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

// What is written "<mask>" or "[MASK]" is put into texts as one id and needs no merge.
bool looks_special(std::string_view bytes) {
  return (bytes.starts_with('<') && bytes.ends_with('>')) ||
         (bytes.starts_with('[') && bytes.ends_with(']'));
}

// Whether some merge of two other tokens would make this one.
bool needs_merge(const std::string& bytes, const std::unordered_map<std::string, int32_t>& ids) {
  constexpr size_t kLongestToken = 256;  // the published vocabularies have none above 128
  if (bytes.size() > kLongestToken || looks_special(bytes)) return false;
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    if (ids.contains(bytes.substr(0, cut)) && ids.contains(bytes.substr(cut))) return true;
  }
  return false;
}

// A vocab.bpe that was cut at a line end reads well, and would give other ids.
void require_all_merges(const BpeTokenizer& tokenizer,
                        const std::unordered_map<std::string, int32_t>& ids,
                        const std::string& vocabulary, const std::string& merges) {
  const std::vector<bool> reached = tokenizer.reached();
  size_t missing = 0;
  const std::string* first = nullptr;
  for (const auto& [bytes, id] : ids) {
    if (reached[static_cast<size_t>(id)] || !needs_merge(bytes, ids)) continue;
    ++missing;
    if (first == nullptr || id < ids.at(*first)) first = &bytes;
  }
  if (missing == 0) return;
  throw Error({ErrorCode::malformed, "", merges},
              concat(merges, ": no merge makes ", missing, " of the tokens of ", vocabulary,
                     ", the first of them '", *first,
                     "'; the file is truncated or of another vocabulary, fetch it again"));
}

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string encoder_json, std::string merges,
                                              std::string_view vocabulary_name,
                                              std::string_view merges_name) {
  const auto ids = parse_vocabulary(encoder_json, vocabulary_name);
  return std::make_unique<BpeTokenizer>(std::move(encoder_json), std::move(merges), ids,
                                        vocabulary_name, merges_name);
}

std::unique_ptr<Tokenizer> load_bpe_tokenizer(const std::string& folder) {
  const bool published_names = exists(join_path(folder, "encoder.json"));
  const std::string vocabulary = join_path(folder, published_names ? "encoder.json" : "vocab.json");
  const std::string merges = join_path(folder, published_names ? "vocab.bpe" : "merges.txt");
  for (const std::string& path : {vocabulary, merges})
    require(exists(path), Cause{ErrorCode::not_found, "data.tokenizer.path", path},
            "the gpt2 tokenizer needs ", path,
            ", which does not exist; put encoder.json and vocab.bpe (or vocab.json and merges.txt) "
            "in the folder");
  std::string encoder_json = read_file(vocabulary, kFileLimitBytes);
  const auto ids = parse_vocabulary(encoder_json, vocabulary);
  auto tokenizer = std::make_unique<BpeTokenizer>(
      std::move(encoder_json), read_file(merges, kFileLimitBytes), ids, vocabulary, merges);
  require_all_merges(*tokenizer, ids, vocabulary, merges);
  return tokenizer;
}

std::unique_ptr<Tokenizer> bpe_tokenizer_from_payload(std::string_view payload,
                                                      std::string_view what) {
  size_t json_bytes = 0;
  const auto [end, status] =
      std::from_chars(payload.data(), payload.data() + payload.size(), json_bytes);
  const auto header = static_cast<size_t>(end - payload.data());
  require(status == std::errc() && header < payload.size() && *end == '\n' &&
              json_bytes <= payload.size() - header - 1,
          Cause{ErrorCode::malformed, "", what}, what,
          ": the stored gpt2 tokenizer is truncated or damaged");
  payload.remove_prefix(header + 1);
  return make_bpe_tokenizer(std::string(payload.substr(0, json_bytes)),
                            std::string(payload.substr(json_bytes)), what, what);
}

}  // namespace linnet
