// The wordpiece tokenizer: BERT's words, then WordPiece.
#include "data/wordpiece_tokenizer.h"

#include <unordered_map>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/utf8.h"
#include "data/bert_text.h"
#include "data/lines.h"

namespace linnet {
namespace {

constexpr uint64_t kFileLimitBytes = uint64_t{64} << 20;
constexpr std::string_view kUncased = "uncased\n", kCased = "cased\n";

class WordPieceTokenizer final : public Tokenizer {
 public:
  WordPieceTokenizer(std::vector<std::string> tokens, SpecialIds special, bool lowercase)
      : tokens_(std::move(tokens)),
        special_(special),
        lowercase_(lowercase),
        model_(tokens_, {.unknown_id = special.unk}),
        encoder_({.strip_accents = lowercase, .lowercase = lowercase}, model_) {}

  std::string_view kind() const override { return "wordpiece"; }
  int32_t vocabulary_size() const override { return static_cast<int32_t>(tokens_.size()); }
  int32_t eos_id() const override { return special_.eos; }
  SpecialIds special_ids() const override { return special_; }
  PairStyle pair_style() const override { return PairStyle::bert; }
  size_t last_cut(std::string_view text) const override { return last_cut_of_words(text); }
  bool follows_separator(int32_t id) const override {
    return !silent(id) && !model_.continues(tokens_[static_cast<size_t>(id)]);
  }

  std::map<std::string, std::string> published_files() const override {
    std::string vocabulary;
    for (const std::string& token : tokens_) vocabulary.append(token).push_back('\n');
    const JsonValue settings = JsonValue::object()
                                   .set("tokenizer_class", "BertTokenizer")
                                   .set("do_lower_case", lowercase_);
    return {{"vocab.txt", vocabulary}, {"tokenizer_config.json", settings.dump(2) + "\n"}};
  }

 protected:
  void encode_impl(std::string_view text, std::vector<int32_t>& ids,
                   UnknownWords* unknown) const override {
    require_utf8(text, "text for the wordpiece tokenizer");
    ids.reserve(text.size() / 4);
    encoder_.encode(text, ids, unknown);
  }
  void append_bytes(int32_t id, std::string& text) const override {
    if (!silent(id)) model_.append_token(tokens_[static_cast<size_t>(id)], text);
  }
  std::string payload() const override {
    std::string out(lowercase_ ? kUncased : kCased);
    for (const std::string& token : tokens_) out.append(token).push_back('\n');
    return out;
  }

 private:
  bool silent(int32_t id) const {
    return id == special_.pad || id == special_.cls || id == special_.sep || id == special_.mask;
  }

  std::vector<std::string> tokens_;
  SpecialIds special_;
  bool lowercase_;
  WordPiece model_;
  BertEncoder encoder_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_wordpiece_tokenizer(std::string_view vocabulary, bool lowercase,
                                                    std::string_view what) {
  require_utf8(vocabulary, what);
  std::vector<std::string> tokens;
  std::unordered_map<std::string_view, int32_t> ids;
  for (TextLines lines(vocabulary); lines.next();) {
    const std::string_view token = lines.line();
    const auto refuse = [&](ErrorCode code, std::string_view key, const auto&... why) {
      throw Error({code, key, concat(what, ":", lines.number())},
                  concat(what, ": line ", lines.number(), why...));
    };
    if (token.empty()) refuse(ErrorCode::malformed, "", " is empty; each line must hold one token");
    // Readers disagree whether it ends a line, and so on all ids behind it.
    if (token.find('\r') != token.npos)
      refuse(ErrorCode::malformed, "",
             " holds a carriage return before its end; save the file with LF or CRLF as line ends");
    if (!ids.emplace(token, static_cast<int32_t>(tokens.size())).second)
      refuse(ErrorCode::repeated, token, " repeats the token '", token, "'; each may appear once");
    tokens.emplace_back(token);
  }
  const auto id_of = [&](std::string_view name) {
    const auto found = ids.find(name);
    return found == ids.end() ? -1 : found->second;
  };
  SpecialIds special{.pad = id_of("[PAD]"),
                     .unk = id_of("[UNK]"),
                     .cls = id_of("[CLS]"),
                     .sep = id_of("[SEP]"),
                     .mask = id_of("[MASK]")};
  special.bos = special.cls;
  special.eos = special.sep;
  require(special.unk >= 0, Cause{ErrorCode::malformed, "[UNK]", what}, what,
          ": expected a vocabulary of BERT, one token a line with [UNK] among them; found ",
          tokens.size(), tokens.size() == 1 ? " line" : " lines", " without it");
  return std::make_unique<WordPieceTokenizer>(std::move(tokens), special, lowercase);
}

std::unique_ptr<Tokenizer> load_wordpiece_tokenizer(const std::string& path, bool lowercase) {
  const std::string file = is_directory(path) ? join_path(path, "vocab.txt") : path;
  require(exists(file), Cause{ErrorCode::not_found, "data.tokenizer.path", file},
          "the wordpiece tokenizer needs ", file,
          ", which does not exist; name the vocab.txt of a "
          "BERT model or its folder");
  const std::string text = read_file(file, kFileLimitBytes);
  return make_wordpiece_tokenizer(without_byte_order_mark(text), lowercase, file);
}

std::unique_ptr<Tokenizer> wordpiece_tokenizer_from_payload(std::string_view payload,
                                                            std::string_view what) {
  const bool lowercase = payload.starts_with(kUncased);
  require(lowercase || payload.starts_with(kCased), Cause{ErrorCode::malformed, "", what}, what,
          ": the stored wordpiece tokenizer is truncated or damaged");
  payload.remove_prefix(lowercase ? kUncased.size() : kCased.size());
  return make_wordpiece_tokenizer(payload, lowercase, what);
}

}  // namespace linnet
