// The tokenizer of a tokenizer.json: added tokens, normaliser, words, model.
#include "data/tokenizer_json.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/files.h"
#include "core/utf8.h"
#include "data/bpe_merges.h"
#include "data/byte_level_bpe.h"
#include "data/lines.h"
#include "data/tokenizer_json_parts.h"
#include "data/unigram.h"

namespace linnet {
namespace {

constexpr uint64_t kFileLimitBytes = uint64_t{32} << 20;

void strip(std::u32string& characters, bool left, bool right) {
  const auto is_space = [](char32_t c) { return (character_classes()[c] & kWhiteSpace) != 0; };
  if (right) {
    while (!characters.empty() && is_space(characters.back())) characters.pop_back();
  }
  if (!left) return;
  characters.erase(characters.begin(),
                   std::find_if_not(characters.begin(), characters.end(), is_space));
}

// Two spaces and more become `content`.
void join_spaces(std::u32string& characters, const std::u32string& content) {
  std::u32string joined;
  for (size_t at = 0; at < characters.size();) {
    const size_t end = std::min(characters.find_first_not_of(U' ', at), characters.size());
    if (end - at >= 2) {
      joined += content;
      at = end;
    } else {
      joined += characters[at++];
    }
  }
  characters = std::move(joined);
}

std::string normalised(std::string_view text, const std::vector<NormalizerStep>& steps) {
  std::u32string characters = characters_of(text);
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case NormalizerStep::Kind::bert:
        normalise_bert(characters, step.bert);
        break;
      case NormalizerStep::Kind::form:
        normalise(characters, step.form);
        break;
      case NormalizerStep::Kind::lowercase: {
        std::u32string lower;
        for (const char32_t c : characters) append_lower(c, lower);
        characters = std::move(lower);
        break;
      }
      case NormalizerStep::Kind::strip_accents:
        std::erase_if(characters, [](char32_t c) { return (character_classes()[c] & kMark) != 0; });
        break;
      case NormalizerStep::Kind::map:
        characters = characters_of(step.map->replaced(utf8_of(characters)));
        break;
      case NormalizerStep::Kind::strip:
        strip(characters, step.left, step.right);
        break;
      case NormalizerStep::Kind::join_spaces:
        join_spaces(characters, characters_of(step.content));
        break;
    }
  }
  return utf8_of(characters);
}

// Calls on_word for runs of characters that are of one group: 0 word characters, 1 others, both
// together with `by_white_space`. White space belongs to none.
template <typename OnWord>
void for_each_run(std::string_view text, bool by_white_space, const OnWord& on_word) {
  const CharacterClasses* classes = character_classes();
  size_t begin = 0;
  int group = -1;  // of the run from begin; -1: white space
  for (size_t at = 0; at < text.size();) {
    const size_t before = at;
    const CharacterClasses found = classes[next_character(text, at)];
    const int now = found & kWhiteSpace ? -1 : by_white_space || (found & kWordCharacter) ? 0 : 1;
    if (now == group) continue;
    if (group >= 0) on_word(text.substr(begin, before - begin));
    begin = before;
    group = now;
  }
  if (group >= 0) on_word(text.substr(begin));
}

// Calls on_piece for the pieces of a text of which each space is U+2581, and begins a piece.
template <typename OnPiece>
void for_each_metaspace_piece(std::string_view text, const OnPiece& on_piece) {
  if (text.empty()) return;
  std::string marked;
  for (const char c : text) {
    if (c == ' ')
      marked += kMetaspace;
    else
      marked += c;
  }
  if (!marked.starts_with(kMetaspace)) marked.insert(0, kMetaspace);
  for (size_t begin = 0; begin < marked.size();) {
    const size_t end = std::min(marked.find(kMetaspace, begin + 1), marked.size());
    on_piece(std::string_view(marked).substr(begin, end - begin));
    begin = end;
  }
}

std::vector<AddedToken> added_tokens(const TokenizerJsonParts& parts, bool normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : parts.added) {
    if (token.normalized != normalized) continue;
    if (normalized) token.content = normalised(token.content, parts.normalizer);
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

// The byte strings of a byte-level vocabulary.
std::unordered_map<std::string, int32_t> bytes_of(const TokenizerJsonParts& parts,
                                                  std::string_view what) {
  std::unordered_map<std::string, int32_t> ids;
  std::string bytes;
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    const std::string& token = parts.tokens[id];
    if (bytes_of_bpe_spelling(token, bytes)) {
      ids.emplace(bytes, static_cast<int32_t>(id));
      continue;
    }
    const bool added = std::any_of(parts.added.begin(), parts.added.end(),
                                   [&](const AddedToken& each) { return each.content == token; });
    require(added, Cause{ErrorCode::malformed, "model.vocab", what}, what, ": model.vocab has '",
            token, "', which is not the spelling of a byte string");
  }
  return ids;
}

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(std::string file, TokenizerJsonParts parts, std::string_view what)
      : file_(std::move(file)),
        parts_(std::move(parts)),
        raw_(added_tokens(parts_, false)),
        normalized_(added_tokens(parts_, true)),
        silent_(parts_.tokens.size(), false) {
    for (const AddedToken& token : parts_.added)
      silent_[static_cast<size_t>(token.id)] = token.special;
    if (parts_.bpe) {
      bpe_.emplace(bytes_of(parts_, what), parts_.merges, concat(what, ": model.vocab"),
                   concat(what, ": model.merges"));
    } else if (parts_.unigram()) {
      unigram_.emplace(parts_.tokens, parts_.scores, parts_.unknown_id);
    } else {
      wordpiece_.emplace(parts_.tokens, parts_.wordpiece);
      for (const int32_t id :
           {parts_.special.pad, parts_.special.cls, parts_.special.sep, parts_.special.mask})
        if (id >= 0) silent_[static_cast<size_t>(id)] = true;
      silent_[static_cast<size_t>(parts_.wordpiece.unknown_id)] = false;
      const bool fast = parts_.pre_tokenizer == PreTokenizerKind::bert && normalized_.empty() &&
                        parts_.normalizer.size() == 1 &&
                        parts_.normalizer[0].kind == NormalizerStep::Kind::bert;
      if (fast) bert_.emplace(parts_.normalizer[0].bert, *wordpiece_);
    }
    decoded_.reserve(parts_.tokens.size());
    std::string bytes;
    for (size_t id = 0; id < parts_.tokens.size(); ++id) {
      const std::string& token = parts_.tokens[id];
      const bool spelt = parts_.bpe && bytes_of_bpe_spelling(token, bytes);
      decoded_.push_back(silent_[id] ? "" : spelt ? bytes : token);
      if (parts_.unigram()) spell_spaces(decoded_.back());
    }
    if (!parts_.bpe) return;
    for (const AddedToken& token : parts_.added)  // written as they are, whatever bytes they spell
      if (!token.special) decoded_[static_cast<size_t>(token.id)] = token.content;
  }

  std::string_view kind() const override { return "tokenizer_json"; }
  int32_t vocabulary_size() const override { return static_cast<int32_t>(parts_.tokens.size()); }
  int32_t eos_id() const override { return parts_.special.eos; }
  SpecialIds special_ids() const override { return parts_.special; }
  PairStyle pair_style() const override { return parts_.pair_style; }
  size_t last_cut(std::string_view text) const override {
    if (!parts_.added.empty()) return 0;  // may hold white space, or take it along
    if (parts_.unigram())
      return 0;  // a text's beginning is marked, and its normaliser sees it whole
    if (!parts_.bpe) return last_cut_of_words(text);
    return parts_.normalizer.empty() && !parts_.prefix_space ? last_bpe_cut(text) : 0;
  }
  bool follows_separator(int32_t id) const override {
    const auto i = static_cast<size_t>(id);
    if (parts_.unigram()) return decoded_[i].starts_with(' ');
    return !parts_.bpe && !silent_[i] && !wordpiece_->continues(decoded_[i]);
  }

  std::map<std::string, std::string> published_files() const override {
    return {{"tokenizer.json", file_}};
  }

 protected:
  void encode_impl(std::string_view text, std::vector<int32_t>& ids,
                   UnknownWords* unknown) const override {
    require_utf8(text, "text for the tokenizer_json tokenizer");
    ids.reserve(text.size() / 4);
    const auto on_token = [&](int32_t id) { ids.push_back(id); };
    const auto on_normalised = [&](std::string_view part) { encode_part(part, ids, unknown); };
    raw_.split(
        text,
        [&](std::string_view part) {
          if (bert_) {
            bert_->encode(part, ids, unknown);
          } else if (parts_.normalizer.empty()) {
            normalized_.split(part, on_normalised, on_token);
          } else {
            normalized_.split(normalised(part, parts_.normalizer), on_normalised, on_token);
          }
        },
        on_token);
  }
  void append_bytes(int32_t id, std::string& text) const override {
    const auto i = static_cast<size_t>(id);
    if (parts_.bpe)
      text += decoded_[i];
    else if (parts_.unigram())
      text += std::string_view(decoded_[i])
                  .substr(text.empty() && decoded_[i].starts_with(' ') ? 1 : 0);
    else if (!silent_[i])
      wordpiece_->append_token(decoded_[i], text);
  }
  std::string payload() const override { return file_; }

 private:
  static void spell_spaces(std::string& token) {
    for (size_t at = token.find(kMetaspace); at < token.size(); at = token.find(kMetaspace, at))
      token.replace(at, kMetaspace.size(), " ");
  }
  void encode_metaspace(std::string_view text, std::vector<int32_t>& ids,
                        UnknownWords* unknown) const {
    const WorkspacePool<PieceCache>::Loan cache(pool_);
    const auto on_piece = [&](std::string_view piece) {
      const size_t before = ids.size();
      unigram_->encode_piece(piece, *cache, ids);
      if (unknown == nullptr) return;
      for (size_t i = before; i < ids.size(); ++i)
        if (ids[i] == unigram_->unknown_id()) unknown->add(piece);
    };
    if (parts_.pre_tokenizer == PreTokenizerKind::metaspace)
      return for_each_metaspace_piece(text, on_piece);
    for_each_run(text, true,
                 [&](std::string_view word) { for_each_metaspace_piece(word, on_piece); });
  }
  // Text without added tokens, normalised.
  void encode_part(std::string_view text, std::vector<int32_t>& ids, UnknownWords* unknown) const {
    if (parts_.bpe) {
      const bool prefixed = parts_.prefix_space && !text.starts_with(' ');
      return prefixed ? bpe_->encode(concat(' ', text), ids) : bpe_->encode(text, ids);
    }
    if (parts_.unigram()) return encode_metaspace(text, ids, unknown);
    const WorkspacePool<PieceCache>::Loan cache(pool_);
    const auto on_word = [&](std::string_view word) {
      const size_t before = ids.size();
      wordpiece_->encode_word(word, *cache, ids);
      if (unknown != nullptr && ids[before] == parts_.wordpiece.unknown_id) unknown->add(word);
    };
    if (parts_.pre_tokenizer == PreTokenizerKind::bert)
      for_each_bert_word(text, on_word);
    else
      for_each_run(text, parts_.pre_tokenizer == PreTokenizerKind::white_space, on_word);
  }

  std::string file_;
  TokenizerJsonParts parts_;
  AddedTokens raw_, normalized_;  // found before, and behind, the normaliser
  std::vector<bool> silent_;      // by id: decodes to nothing
  std::vector<std::string> decoded_;
  std::optional<ByteLevelBpe> bpe_;
  std::optional<Unigram> unigram_;
  std::optional<WordPiece> wordpiece_;
  std::optional<BertEncoder> bert_;  // the usual parts of BERT together
  mutable WorkspacePool<PieceCache> pool_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer_json(std::string text, std::string_view what) {
  TokenizerJsonParts parts = read_tokenizer_json(without_byte_order_mark(text), what);
  return std::make_unique<JsonTokenizer>(std::move(text), std::move(parts), what);
}

std::unique_ptr<Tokenizer> load_tokenizer_json(const std::string& path) {
  const std::string file = is_directory(path) ? join_path(path, "tokenizer.json") : path;
  require(exists(file), Cause{ErrorCode::not_found, "data.tokenizer.path", file},
          "the tokenizer_json tokenizer needs ", file,
          ", which does not exist; name a tokenizer.json or its folder");
  return make_tokenizer_json(read_file(file, kFileLimitBytes), file);
}

std::unique_ptr<Tokenizer> tokenizer_json_from_payload(std::string_view payload,
                                                       std::string_view what) {
  return make_tokenizer_json(std::string(payload), what);
}

}  // namespace linnet
