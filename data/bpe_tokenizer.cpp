// GPT-2's and RoBERTa's tokenizers: one way to encode, two ways to number the tokens.
#include "data/bpe_tokenizer.h"

#include <charconv>
#include <unordered_map>
#include <unordered_set>

#include "core/echo.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/utf8.h"
#include "data/byte_level_bpe.h"
#include "data/lines.h"

namespace linnet {
namespace {

constexpr uint64_t kFileLimitBytes = uint64_t{64} << 20;
// Of encoder.json, of which GPT-2's has 1 MB; parsed, it takes several times as much memory.
constexpr size_t kJsonLimitBytes = size_t{8} << 20;
constexpr std::string_view kEndOfText = "<|endoftext|>";

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
  BpeTokenizer(bool roberta, std::string encoder_json, std::string merges_text,
               const std::unordered_map<std::string, int32_t>& ids,
               std::string_view vocabulary_name, std::string_view merges_name)
      : roberta_(roberta),
        encoder_json_(std::move(encoder_json)),
        merges_text_(std::move(merges_text)),
        bpe_(ids, merges_text_, vocabulary_name, merges_name),
        bytes_of_(ids.size()) {
    for (const auto& [bytes, id] : ids) bytes_of_[static_cast<size_t>(id)] = bytes;
    // Special ids decode to nothing.
    const auto special = [&](std::string_view name) {
      const auto found = ids.find(std::string(name));
      if (found == ids.end()) return -1;
      bytes_of_[static_cast<size_t>(found->second)].clear();
      return found->second;
    };
    const int32_t end_of_text = special(kEndOfText);
    if (roberta) {
      special_ = {.pad = special("<pad>"),
                  .unk = special("<unk>"),
                  .cls = special("<s>"),
                  .sep = special("</s>"),
                  .mask = special("<mask>")};
      special_.bos = special_.cls;
      special_.eos = special_.sep;
      for (const auto& [name, id] : {std::pair("<s>", special_.cls), {"</s>", special_.sep}})
        require(id >= 0, Cause{ErrorCode::malformed, name, vocabulary_name}, vocabulary_name,
                ": the vocabulary has no ", name, ", so it is not of RoBERTa");
    } else {
      special_ = {.pad = end_of_text, .bos = end_of_text, .eos = end_of_text};
    }
  }

  std::string_view kind() const override { return roberta_ ? "roberta" : "gpt2"; }
  int32_t vocabulary_size() const override { return static_cast<int32_t>(bytes_of_.size()); }
  int32_t eos_id() const override { return special_.eos; }
  SpecialIds special_ids() const override { return special_; }
  PairStyle pair_style() const override { return roberta_ ? PairStyle::roberta : PairStyle::plain; }
  size_t last_cut(std::string_view text) const override { return last_bpe_cut(text); }
  std::map<std::string, std::string> published_files() const override {
    return {{"vocab.json", encoder_json_}, {"merges.txt", merges_text_}};
  }
  std::vector<bool> reached() const { return bpe_.merges().reached(bytes_of_.size()); }

 protected:
  void encode_impl(std::string_view text, std::vector<int32_t>& ids, UnknownWords*) const override {
    require_utf8(text, concat("text for the ", kind(), " tokenizer"));
    ids.reserve(text.size() / 3);
    bpe_.encode(text, ids);
  }
  void append_bytes(int32_t id, std::string& text) const override {
    text += bytes_of_[static_cast<size_t>(id)];
  }
  std::string payload() const override {
    return concat(encoder_json_.size(), "\n", encoder_json_, merges_text_);
  }

 private:
  bool roberta_;
  std::string encoder_json_, merges_text_;
  ByteLevelBpe bpe_;
  std::vector<std::string> bytes_of_;
  SpecialIds special_;
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

// GPT-2's encoder.json in RoBERTa's order: four special tokens, the lines of fairseq's dict.txt
// ("13 850314647": an id of GPT-2 and its count, or a name), <mask>.
std::string roberta_vocabulary(const std::string& dictionary, std::string_view dictionary_name,
                               const std::string& encoder_json, std::string_view encoder_name) {
  const JsonValue encoder =
      parse_json(encoder_json, std::string(encoder_name), {kJsonLimitBytes, 2});
  std::vector<std::string> spellings(encoder.size());
  for (const auto& [spelling, value] : encoder.members()) {
    const int64_t id = value.integer();
    require(id >= 0 && static_cast<size_t>(id) < spellings.size(),
            Cause{ErrorCode::out_of_range, spelling, encoder_name}, encoder_name,
            ": the ids must be 0 to ", spellings.size() - 1, "; '", spelling, "' breaks this");
    spellings[static_cast<size_t>(id)] = spelling;
  }
  JsonValue ids = JsonValue::object();
  std::unordered_set<std::string> taken;
  const auto add = [&](const std::string& spelling, int64_t line) {
    require(taken.insert(spelling).second,
            Cause{ErrorCode::repeated, spelling, concat(dictionary_name, ":", line)},
            dictionary_name, ": line ", line, " repeats '", spelling, "'");
    ids.append(spelling, static_cast<int64_t>(ids.size()));
  };
  for (const char* name : {"<s>", "<pad>", "</s>", "<unk>"}) add(name, 0);
  for (TextLines lines(without_byte_order_mark(dictionary)); lines.next();) {
    const std::string_view line = lines.line();
    const std::string_view name = line.substr(0, std::min(line.find(' '), line.size()));
    size_t id = 0;
    const auto [end, status] = std::from_chars(name.data(), name.data() + name.size(), id);
    const bool number = status == std::errc() && end == name.data() + name.size();
    require(number ? id < spellings.size() : name.starts_with("madeupword"),
            Cause{ErrorCode::malformed, "", concat(dictionary_name, ":", lines.number())},
            dictionary_name, ": line ", lines.number(), " must begin with an id of ", encoder_name,
            ", 0 to ", spellings.size() - 1, ", or with a name madeupword0000; found '",
            shortened(name, 40), "'");
    add(number ? spellings[id] : std::string(name), lines.number());
  }
  add("<mask>", 0);
  return ids.dump();
}

// The vocabulary in the order of its ids, without what else may differ between two files.
std::string in_order(const std::string& vocabulary_json, const std::string& name) {
  const JsonValue json = parse_json(vocabulary_json, name, {kJsonLimitBytes, 2});
  std::vector<std::string> spellings(json.size());
  for (const auto& [spelling, id] : json.members())
    spellings[static_cast<size_t>(id.integer())] = spelling;
  JsonValue ids = JsonValue::object();
  for (std::string& spelling : spellings)
    ids.append(std::move(spelling), static_cast<int64_t>(ids.size()));
  return ids.dump();
}

void require_file(std::string_view tokenizer, const std::string& path, const char* files) {
  require(exists(path), Cause{ErrorCode::not_found, "data.tokenizer.path", path}, "the ", tokenizer,
          " tokenizer needs ", path, ", which does not exist; put ", files, " in the folder");
}

// The two parts of a payload.
std::pair<std::string, std::string> split_payload(std::string_view payload, std::string_view what,
                                                  std::string_view kind) {
  size_t json_bytes = 0;
  const auto [end, status] =
      std::from_chars(payload.data(), payload.data() + payload.size(), json_bytes);
  const auto header = static_cast<size_t>(end - payload.data());
  require(status == std::errc() && header < payload.size() && *end == '\n' &&
              json_bytes <= payload.size() - header - 1,
          Cause{ErrorCode::malformed, "", what}, what, ": the stored ", kind,
          " tokenizer is truncated or damaged");
  payload.remove_prefix(header + 1);
  return {std::string(payload.substr(0, json_bytes)), std::string(payload.substr(json_bytes))};
}

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string encoder_json, std::string merges,
                                              std::string_view vocabulary_name,
                                              std::string_view merges_name) {
  const auto ids = parse_vocabulary(encoder_json, vocabulary_name);
  return std::make_unique<BpeTokenizer>(false, std::move(encoder_json), std::move(merges), ids,
                                        vocabulary_name, merges_name);
}

std::unique_ptr<Tokenizer> load_bpe_tokenizer(const std::string& folder) {
  const bool published_names = exists(join_path(folder, "encoder.json"));
  const std::string vocabulary = join_path(folder, published_names ? "encoder.json" : "vocab.json");
  const std::string merges = join_path(folder, published_names ? "vocab.bpe" : "merges.txt");
  for (const std::string& path : {vocabulary, merges})
    require_file("gpt2", path, "encoder.json and vocab.bpe (or vocab.json and merges.txt)");
  std::string encoder_json = read_file(vocabulary, kFileLimitBytes);
  const auto ids = parse_vocabulary(encoder_json, vocabulary);
  auto tokenizer = std::make_unique<BpeTokenizer>(
      false, std::move(encoder_json), read_file(merges, kFileLimitBytes), ids, vocabulary, merges);
  require_all_merges(*tokenizer, ids, vocabulary, merges);
  return tokenizer;
}

std::unique_ptr<Tokenizer> bpe_tokenizer_from_payload(std::string_view payload,
                                                      std::string_view what) {
  auto [json, merges] = split_payload(payload, what, "gpt2");
  return make_bpe_tokenizer(std::move(json), std::move(merges), what, what);
}

std::unique_ptr<Tokenizer> load_roberta_tokenizer(const std::string& folder) {
  const std::string dictionary = join_path(folder, "dict.txt");
  const bool fairseq = exists(dictionary);
  const std::string vocabulary = join_path(folder, fairseq ? "encoder.json" : "vocab.json");
  const std::string merges = join_path(folder, fairseq ? "vocab.bpe" : "merges.txt");
  for (const std::string& path : {vocabulary, merges})
    require_file("roberta", path,
                 "vocab.json and merges.txt (or dict.txt, encoder.json and vocab.bpe)");
  std::string json = read_file(vocabulary, kFileLimitBytes);
  if (fairseq)
    json = roberta_vocabulary(read_file(dictionary, kFileLimitBytes), dictionary, json, vocabulary);
  const auto ids = parse_vocabulary(json, vocabulary);
  auto tokenizer =
      std::make_unique<BpeTokenizer>(true, in_order(json, vocabulary),
                                     read_file(merges, kFileLimitBytes), ids, vocabulary, merges);
  require_all_merges(*tokenizer, ids, vocabulary, merges);
  return tokenizer;
}

std::unique_ptr<Tokenizer> roberta_tokenizer_from_payload(std::string_view payload,
                                                          std::string_view what) {
  auto [json, merges] = split_payload(payload, what, "roberta");
  const auto ids = parse_vocabulary(json, what);
  return std::make_unique<BpeTokenizer>(true, std::move(json), std::move(merges), ids, what, what);
}

}  // namespace linnet
