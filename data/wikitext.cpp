// WikiText: its files, and their published sizes.
#include "data/wikitext.h"

#include "core/error.h"
#include "core/files.h"

namespace linnet {
namespace {

struct Published {
  Split split;
  int64_t lines, words;  // words with one <eos> per line
  const char* name;
};

// Validation and test are the same text in WikiText-2 and WikiText-103, tokens and raw.
constexpr Published kPublished[] = {
    {Split::train, 1'801'350, 103'227'021, "WikiText-103 train"},
    {Split::train, 36'718, 2'088'628, "WikiText-2 train"},
    {Split::validation, 3'760, 217'646, "WikiText validation"},
    {Split::test, 4'358, 245'569, "WikiText test"},
};

TextSources find_wikitext(const DataConfig& config) {
  require(is_directory(config.path), Cause{ErrorCode::not_found, "data.path", config.path},
          config.path, exists(config.path) ? " is a file" : " does not exist",
          "; kind wikitext needs a folder with wiki.train.tokens and the like");
  const auto name_in = [](Split split, std::string_view form) {
    const std::string_view stem = split == Split::validation ? "valid" : name_of(split);
    return form == "txt" ? concat(stem, ".txt") : concat("wiki.", stem, ".", form);
  };
  const bool words = config.text().tokenizer.kind == "word";
  std::vector<std::string_view> forms = {"raw", "tokens", "txt"};
  if (words) forms = {"tokens", "txt", "raw"};
  for (const std::string_view form : forms) {
    TextSources sources;
    sources.wikitext = true;
    sources.layout = form == "raw" ? "WikiText raw" : "WikiText tokens";
    for (const Split split : kSplits) {
      const std::string name = name_in(split, form), path = join_path(config.path, name);
      if (exists(path))
        sources.files(split) = {{path, name}};
      else
        sources.why_missing(split) = concat(path, " does not exist");
    }
    if (!sources.any()) continue;
    if (!words && form != "raw")
      sources.warnings.push_back(
          concat(config.path, " holds WikiText with words already replaced by <unk>; the ",
                 config.text().tokenizer.kind, " tokenizer is meant for the raw files"));
    return sources;
  }
  throw Error({ErrorCode::not_found, "data.path", config.path},
              concat(config.path,
                     " holds no WikiText file (wiki.{train,valid,test}.tokens or .raw, or "
                     "{train,valid,test}.txt)"));
}

// WikiText-2 and -103 come with these names too. Their first line with text is the title of an
// article, which tells them from other texts so named.
bool is_wikitext_txt(const std::string& path) {
  if (!exists(path) || is_directory(path)) return false;
  std::string start(4096, '\0');
  start.resize(File(path, OpenMode::read).read(start));
  const size_t first = start.find_first_not_of(" \n");
  const std::string line =
      first == std::string::npos ? "" : start.substr(first, start.find('\n', first) - first);
  return line.starts_with("= ") && line.ends_with(" = ");
}

Likeness likeness_of_wikitext(const std::string& path) {
  if (!is_directory(path)) return Likeness::none;
  for (const char* stem : {"train", "valid", "test"}) {
    const auto has = [&](const char* form) {
      return exists(join_path(path, concat("wiki.", stem, ".", form)));
    };
    if (has("tokens") || has("raw") || is_wikitext_txt(join_path(path, concat(stem, ".txt"))))
      return Likeness::files;
  }
  return Likeness::none;
}

// Words are what WikiText's counts are in. Without the training file there is no vocabulary, and
// bytes have to do; a report counts words in any case.
void choose_words(DataConfig& config) {
  TokenizerConfig& tokenizer = config.text().tokenizer;
  tokenizer.kind = "word";
  if (find_wikitext(config).files(Split::train).empty()) tokenizer.kind = "byte";
}

}  // namespace

DataKind wikitext_kind() {
  return {
      .name = "wikitext",
      .help =
          "WikiText-2 or -103: wiki.{train,valid,test}.tokens or .raw, or "
          "{train,valid,test}.txt",
      .options = KindOptions(TextEncoding()),
      .gives = TextData{.find = find_wikitext, .one_stream = true, .inspect_with = choose_words},
      .likeness = likeness_of_wikitext};
}

std::string check_wikitext(Split split, const std::string& path, const TextCounts& counts) {
  require(counts.ends_line(), Cause{ErrorCode::malformed, "", path}, path,
          ": the file is truncated: a WikiText file ends with a line end, this one inside a line");
  const int64_t lines = counts.line_ends, words = counts.words + lines;
  std::string known;
  for (const Published& published : kPublished) {
    if (published.split != split) continue;
    if (published.lines != lines) {
      known += concat(known.empty() ? "" : ", ", published.name, " ", published.lines);
      continue;
    }
    require(words == published.words, Cause{ErrorCode::malformed, "", path}, path, " has the ",
            lines, " lines of ", published.name, " but ", words, " words with <eos> instead of ",
            published.words, "; the file was altered, fetch it again");
    return "";
  }
  return concat("the ", name_of(split), " split has ", lines,
                " lines, so it is not a complete published file (lines: ", known,
                "); its perplexity is not comparable with published ones");
}

}  // namespace linnet
