// From files to tokens.
#include "data/text_dataset.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "data/preparation.h"
#include "data/tokenizer_kinds.h"
#include "data/wikitext.h"
#include "data/word_tokenizer.h"
#include "data/words.h"

namespace linnet {
namespace {

void require_files(const TextSources& sources, Split split) {
  require(!sources.files(split).empty(),
          Cause{ErrorCode::not_found, concat("data.", name_of(split))}, "the data set has no ",
          name_of(split), " split: ", sources.missing[static_cast<size_t>(split)]);
}

std::shared_ptr<const Tokenizer> tokenizer_for(const DataConfig& config,
                                               const TextSources& sources) {
  const TokenizerConfig& tokenizer = config.text().tokenizer;
  if (tokenizer.kind != "word" || !tokenizer.path.empty()) return make_tokenizer(tokenizer);
  require_files(sources, Split::train);
  WordVocabularyBuilder builder;
  Preparation preparation("collecting words", sources.files(Split::train));
  for (const SourceFile& file : sources.files(Split::train)) {
    preparation.begin(file);
    builder.add(read_document(file));
  }
  return builder.build(tokenizer.vocabulary_size);
}

// Lines without white space at either end, each encoded alone and ended with eos.
void append_stripped_lines(std::string_view text, const Tokenizer& tokenizer,
                           std::vector<int32_t>& tokens) {
  const size_t bytes = text.size();
  while (!text.empty()) {
    report_bytes_done(bytes - text.size());
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
    while (!line.empty() && is_space(line.back())) line.remove_suffix(1);
    const auto ids = tokenizer.encode(line);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    tokens.push_back(tokenizer.eos_id());
  }
}

void check_line_ends(const std::string& lines, std::string_view tokenizer, bool has_eos,
                     bool ends_lines) {
  require_usage(
      lines == "whole" || (has_eos && !ends_lines), Cause{ErrorCode::conflict, "data.lines"},
      "data.lines: stripped ends each line with eos, which the ", tokenizer,
      has_eos ? " tokenizer does by itself; use lines: whole" : " tokenizer does not have");
}

}  // namespace

void check_line_ends(const DataConfig& config) {
  const TokenizerConfig& tokenizer = config.text().tokenizer;
  const TokenizerKind* kind = find_tokenizer_kind(tokenizer.kind);
  using LineEnds = TokenizerKind::LineEnds;
  if (kind == nullptr || kind->line_ends == LineEnds::in_vocabulary) return;
  const bool own = kind->line_ends == LineEnds::of_its_own;
  check_line_ends(config.text().lines, tokenizer.kind, own || tokenizer.eos, own);
}

TextDataset::TextDataset(const DataConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                         std::string cache_folder)
    : config_(config),
      sources_(find_text_sources(config)),
      tokenizer_(tokenizer != nullptr ? std::move(tokenizer) : tokenizer_for(config, sources_)),
      measure_(*tokenizer_, sources_.wikitext, config.text().lines == "stripped"),
      cache_folder_(cache_folder.empty() ? token_cache_folder() : std::move(cache_folder)),
      warnings_(sources_.warnings) {
  check_line_ends(config_.text().lines, tokenizer_->kind(), tokenizer_->eos_id() >= 0,
                  tokenizer_->lines_end_with_eos());
}

std::shared_ptr<const TokenizedCorpus> TextDataset::split(Split split) {
  require_files(sources_, split);
  auto& loaded = splits_[static_cast<size_t>(split)];
  if (loaded == nullptr) {
    CachedCorpus cached = config_.cache ? load_through_cache(split) : tokenize(split);
    warnings_.insert(warnings_.end(), cached.warnings.begin(), cached.warnings.end());
    unknown_[static_cast<size_t>(split)] = std::move(cached.unknown);
    loaded = std::make_shared<TokenizedCorpus>(std::move(cached.corpus));
  }
  return loaded;
}

const std::string& TextDataset::fingerprint(Split split) {
  auto& known = fingerprints_[static_cast<size_t>(split)];
  if (!known) known = fingerprint_of(sources_, split);
  return *known;
}

CachedCorpus TextDataset::load_through_cache(Split split) {
  if (cache_folder_.empty()) {
    warnings_.push_back("tokens are not cached: neither LINNET_CACHE nor HOME is set");
    return tokenize(split);
  }
  const std::string path =
      token_cache_path(cache_folder_, config_, fingerprint(split), *tokenizer_);
  const int32_t vocabulary_size = tokenizer_->vocabulary_size();
  if (auto cached = read_token_cache(path, vocabulary_size, warnings_)) return *std::move(cached);
  CachedCorpus made = tokenize(split);
  try {
    write_token_cache(path, made, vocabulary_size);
  } catch (const Error& error) {
    // Training can go on without a cache; the next run tokenizes again.
    warnings_.push_back(concat("the tokens could not be cached: ", error.what()));
  }
  return made;
}

// One sentence for all splits: their unknown words are one fact about the vocabulary.
void TextDataset::report_unknown_words() {
  std::string shares, first;
  for (const Split split : kSplits) {
    const auto i = static_cast<size_t>(split);
    const UnknownWords unknown = std::exchange(unknown_[i], {});
    if (unknown.count == 0) continue;
    if (first.empty()) first = unknown.first;
    shares += concat(shares.empty() ? "" : ", ", unknown.count, " of the ", splits_[i]->size(),
                     " tokens of ", name_of(split));
  }
  if (first.empty()) return;
  warnings_.push_back(concat("words that the vocabulary lacks became <unk>: ", shares,
                             "; the first is '", first, "'"));
}

std::vector<std::string> TextDataset::take_warnings() {
  report_unknown_words();
  return std::exchange(warnings_, {});
}

CachedCorpus TextDataset::tokenize(Split split) const {
  CachedCorpus made;
  TokenizedCorpus& corpus = made.corpus;
  const bool stripped = config_.text().lines == "stripped";
  const bool own_line_ends = tokenizer_->lines_end_with_eos();
  std::vector<std::string> empty;
  Preparation preparation(concat("encoding ", name_of(split)), sources_.files(split));
  for (const SourceFile& file : sources_.files(split)) {
    preparation.begin(file);
    const std::string text = read_document(file);
    Document document{file.name, corpus.size(), static_cast<int64_t>(text.size()),
                      static_cast<int64_t>(count_words(text))};
    if (sources_.wikitext) {
      document.words += std::count(text.begin(), text.end(), '\n');
      const std::string warning = check_wikitext(split, file.path, text, document.words);
      if (!warning.empty()) made.warnings.push_back(warning);
    }
    if (text.empty()) {
      empty.push_back(file.name);
      continue;
    }
    if (stripped) {
      append_stripped_lines(text, *tokenizer_, corpus.tokens);
    } else {
      const auto ids = tokenizer_->encode(text, &made.unknown);
      corpus.tokens.insert(corpus.tokens.end(), ids.begin(), ids.end());
      const bool open_line = own_line_ends && text.back() != '\n';
      if ((open_line || (config_.text().document_eos && !own_line_ends)) &&
          tokenizer_->eos_id() >= 0)
        corpus.tokens.push_back(tokenizer_->eos_id());
    }
    corpus.documents.push_back(std::move(document));
  }
  if (empty.size() == 1) {
    made.warnings.push_back(concat(empty.front(), " is empty and was left out"));
  } else if (!empty.empty()) {
    made.warnings.push_back(concat(empty.size(), " files of ", name_of(split),
                                   " are empty and were left out; the first is ", empty.front()));
  }
  require(!corpus.tokens.empty(),
          Cause{ErrorCode::out_of_range, concat("data.", name_of(split)),
                sources_.files(split).front().path},
          "the ", name_of(split), " split is empty: ", sources_.files(split).front().path,
          sources_.files(split).size() > 1 ? " and the other files of it hold no text"
                                           : " holds no text");
  return made;
}

}  // namespace linnet
