// From files to tokens.
#include "data/text_dataset.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/interrupt.h"
#include "data/document_pieces.h"
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
    DocumentPieces text(file, end_of_last_space);
    while (text.next()) {
      builder.add(text.piece());
      preparation.end_piece(text.piece().size());
    }
    builder.end_text();
  }
  return builder.build(tokenizer.vocabulary_size);
}

// Lines without white space at either end, each encoded alone and ended with eos.
std::vector<int32_t> encode_stripped_lines(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
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
  return tokens;
}

// Training can go on without a cache; the next run tokenizes again.
struct NotCached {
  std::string why;
};

template <typename Write>
void write_to_cache(const Write& write) {
  try {
    write();
  } catch (const Error& error) {
    throw NotCached{error.what()};
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
    CachedSplit cached = config_.cache ? load_through_cache(split) : tokenize_in_memory(split);
    keep_warnings(split, cached.facts);
    loaded = std::make_shared<TokenizedCorpus>(
        TokenizedCorpus{std::move(cached.tokens), std::move(cached.facts.documents)});
  }
  return loaded;
}

SplitCounts TextDataset::counts(Split split) {
  const auto& loaded = splits_[static_cast<size_t>(split)];
  TokenizedCorpus counted;
  int64_t tokens = 0;
  if (config_.cache || loaded != nullptr) {
    counted = *this->split(split);
    tokens = counted.size();
  } else {
    require_files(sources_, split);
    SplitFacts facts = tokenize(split, [](std::span<const int32_t>) {});
    keep_warnings(split, facts);
    counted.documents = std::move(facts.documents);
    tokens = facts.tokens;
  }
  return {static_cast<int64_t>(counted.documents.size()), counted.bytes(), counted.words(), tokens};
}

void TextDataset::keep_warnings(Split split, SplitFacts& facts) {
  warnings_.insert(warnings_.end(), facts.warnings.begin(), facts.warnings.end());
  unknown_[static_cast<size_t>(split)] = {std::move(facts.unknown), facts.tokens};
}

const std::string& TextDataset::fingerprint(Split split) {
  auto& known = fingerprints_[static_cast<size_t>(split)];
  if (!known) known = fingerprint_of(sources_, split);
  return *known;
}

CachedSplit TextDataset::load_through_cache(Split split) {
  if (cache_folder_.empty()) {
    warnings_.push_back("tokens are not cached: neither LINNET_CACHE nor HOME is set");
    return tokenize_in_memory(split);
  }
  const std::string path =
      token_cache_path(cache_folder_, config_, fingerprint(split), *tokenizer_);
  const int32_t vocabulary_size = tokenizer_->vocabulary_size();
  if (auto cached = read_token_cache(path, vocabulary_size, warnings_)) return *std::move(cached);
  try {
    std::optional<TokenCacheWriter> writer;
    write_to_cache([&] { writer.emplace(path, vocabulary_size); });
    const SplitFacts facts = tokenize(
        split, [&](std::span<const int32_t> ids) { write_to_cache([&] { writer->add(ids); }); });
    write_to_cache([&] { writer->finish(facts); });
  } catch (const NotCached& reason) {
    warnings_.push_back(concat("the tokens could not be cached: ", reason.why));
    return tokenize_in_memory(split);
  }
  if (auto cached = read_token_cache(path, vocabulary_size, warnings_)) return *std::move(cached);
  return tokenize_in_memory(split);
}

CachedSplit TextDataset::tokenize_in_memory(Split split) const {
  std::string stored;
  const int32_t vocabulary_size = tokenizer_->vocabulary_size();
  SplitFacts facts = tokenize(
      split, [&](std::span<const int32_t> ids) { append_tokens(ids, vocabulary_size, stored); });
  return {TokenArray(std::move(stored), vocabulary_size), std::move(facts)};
}

// One sentence for all splits: their unknown words are one fact about the vocabulary.
void TextDataset::report_unknown_words() {
  std::string shares, first;
  for (const Split split : kSplits) {
    const auto i = static_cast<size_t>(split);
    const auto [words, tokens] = std::exchange(unknown_[i], {});
    if (words.count == 0) continue;
    if (first.empty()) first = words.first;
    shares += concat(shares.empty() ? "" : ", ", words.count, " of the ", tokens, " tokens of ",
                     name_of(split));
  }
  if (first.empty()) return;
  warnings_.push_back(concat("words that the vocabulary lacks became <unk>: ", shares,
                             "; the first is '", first, "'"));
}

std::vector<std::string> TextDataset::take_warnings() {
  report_unknown_words();
  return std::exchange(warnings_, {});
}

SplitFacts TextDataset::tokenize(Split split, const TokenSink& sink) const {
  SplitFacts made;
  const auto add = [&](std::span<const int32_t> ids) {
    made.tokens += static_cast<int64_t>(ids.size());
    sink(ids);
  };
  const bool stripped = config_.text().lines == "stripped";
  const bool own_line_ends = tokenizer_->lines_end_with_eos();
  const auto cut = [&](std::string_view text) {
    return stripped ? text.rfind('\n') + 1 : tokenizer_->last_cut(text);
  };
  std::vector<std::string> empty;
  Preparation preparation(concat("encoding ", name_of(split)), sources_.files(split));
  for (const SourceFile& file : sources_.files(split)) {
    preparation.begin(file);
    Document document{file.name, made.tokens, 0, 0};
    TextCounts counts;
    DocumentPieces text(file, cut);
    while (text.next()) {
      interruption_point();
      counts.add(text.piece());
      add(stripped ? encode_stripped_lines(text.piece(), *tokenizer_)
                   : tokenizer_->encode(text.piece(), &made.unknown));
      preparation.end_piece(text.piece().size());
    }
    document.bytes = counts.bytes;
    document.words = counts.words;
    if (sources_.wikitext) {
      document.words += counts.line_ends;
      const std::string warning = check_wikitext(split, file.path, counts);
      if (!warning.empty()) made.warnings.push_back(warning);
    }
    if (counts.bytes == 0) {
      empty.push_back(file.name);
      continue;
    }
    const int32_t eos = tokenizer_->eos_id();
    const bool open_line = own_line_ends && !counts.ends_line();
    const bool ends = open_line || (config_.text().document_eos && !own_line_ends);
    if (!stripped && ends && eos >= 0) add(std::span(&eos, 1));
    made.documents.push_back(std::move(document));
  }
  if (empty.size() == 1) {
    made.warnings.push_back(concat(empty.front(), " is empty and was left out"));
  } else if (!empty.empty()) {
    made.warnings.push_back(concat(empty.size(), " files of ", name_of(split),
                                   " are empty and were left out; the first is ", empty.front()));
  }
  require(made.tokens > 0,
          Cause{ErrorCode::out_of_range, concat("data.", name_of(split)),
                sources_.files(split).front().path},
          "the ", name_of(split), " split is empty: ", sources_.files(split).front().path,
          sources_.files(split).size() > 1 ? " and the other files of it hold no text"
                                           : " holds no text");
  return made;
}

}  // namespace linnet
