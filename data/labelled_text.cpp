#include "data/labelled_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "data/pair_encoding.h"

namespace linnet {
namespace {

constexpr size_t kMaxClasses = 1000;

// Texts to tokens, and how many were cut or had unknown words.
class ExampleEncoder {
 public:
  ExampleEncoder(std::shared_ptr<const Tokenizer> tokenizer, int64_t max_tokens, bool special)
      : tokenizer_(std::move(tokenizer)),
        style_(special ? tokenizer_->pair_style() : PairStyle::plain),
        special_(tokenizer_->special_ids()),
        max_tokens_(max_tokens) {
    if (style_ != PairStyle::plain || !special) return;
    own_ids_ = false;
    style_ = PairStyle::bert;
    special_ = {.pad = 0};
    special_.sep = tokenizer_->vocabulary_size() + 1;
    special_.cls = special_.sep + 1;
  }
  int32_t vocabulary_size() const {
    return own_ids_ ? tokenizer_->vocabulary_size() : special_.cls + 1;
  }
  int32_t pad_id() const { return std::max(special_.pad, 0); }

  void add(const TextRow& row, bool pair, ClassificationSplit& split) {
    const std::vector<int32_t> first = ids_of(row.text);
    std::optional<std::vector<int32_t>> second;
    if (pair) second = ids_of(row.text_pair);
    PairEncoding made = join_texts(
        special_, style_, first,
        second ? std::optional<std::span<const int32_t>>(*second) : std::nullopt, max_tokens_);
    if (made.ids.empty()) made.ids.push_back(pad_id());  // a row needs a token that is valid
    split.add_sequence(made.ids);
    if (pair && style_ == PairStyle::bert)
      split.types.insert(split.types.end(), made.types.begin(), made.types.end());
    ++examples_;
    if (made.cut > 0) ++cut_;
  }
  // What was cut since the last call.
  void report(std::string_view split, std::vector<std::string>& notes) {
    if (cut_ > 0)
      notes.push_back(concat(split, ": ", cut_, " of ", examples_, " examples are longer than ",
                             max_tokens_, " tokens (data.context) and are cut"));
    if (unknown_.count > 0)
      notes.push_back(concat(split, ": ", unknown_.count, " words are unknown, the first is '",
                             unknown_.first, "'"));
    examples_ = cut_ = 0;
    unknown_ = {};
  }

 private:
  std::vector<int32_t> ids_of(const std::string& text) {
    std::vector<int32_t> ids = tokenizer_->encode(text, &unknown_);
    if (!own_ids_)
      for (int32_t& id : ids) ++id;
    return ids;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  PairStyle style_;
  SpecialIds special_;
  int64_t max_tokens_, examples_ = 0, cut_ = 0;
  bool own_ids_ = true;  // the tokenizer's ids stay as they are
  UnknownWords unknown_;
};

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, failed] = std::from_chars(text.data(), end, value);
  if (failed != std::errc() || at != end) return std::nullopt;
  return value;
}

std::optional<float> finite_number(const std::string& text) {
  float value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, failed] = std::from_chars(text.data(), end, value);
  if (failed != std::errc() || at != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::vector<std::string> classes_of(const TextSplits& texts) {
  std::set<std::string> labels;
  for (const Split split : kSplits) {
    for (const RowFile& file : texts.of(split))
      for (const TextRow& row : file.rows)
        if (file.labelled) labels.insert(row.label);
    if (split == Split::train && !labels.empty()) break;
  }
  std::vector<std::string> names(labels.begin(), labels.end());
  require(names.size() <= kMaxClasses, Cause{ErrorCode::out_of_range, "data.label"}, "there are ",
          names.size(), " different labels, from '", names[0], "' on, and at most ", kMaxClasses,
          " can be classes: name the column of the classes in data.label");
  const bool numbers = std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return whole_number(name).has_value();
  });
  if (numbers) {
    std::stable_sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
      return *whole_number(a) < *whole_number(b);
    });
  }
  return names;
}

std::string shown_classes(const std::vector<std::string>& classes) {
  std::string text;
  for (size_t i = 0; i < classes.size() && i < 10; ++i)
    text += concat(i > 0 ? ", " : "", classes[i]);
  return classes.size() > 10 ? concat(text, " and ", classes.size() - 10, " more") : text;
}

// What labels mean: classes by their names, or numbers.
class Labels {
 public:
  Labels(const std::vector<std::string>& classes, bool values)
      : classes_(classes), values_(values) {
    for (const std::string& name : classes)
      numbers_.emplace(name, static_cast<int32_t>(numbers_.size()));
  }
  // Adds a row's label, or none where `labelled` is false. Throws Error without a place.
  void add(const std::string& label, bool labelled, ClassificationSplit& split) const {
    if (values_) {
      const std::optional<float> value = labelled ? finite_number(label) : 0;
      require(value.has_value(), Cause{ErrorCode::malformed}, "the label '", label,
              "' is no number");
      split.values.push_back(*value);
      split.labels.push_back(labelled ? 0 : kUnlabelled);
      return;
    }
    const auto found = numbers_.find(label);
    require(!labelled || found != numbers_.end(), Cause{ErrorCode::malformed}, "the label '", label,
            "' is none of the classes ", shown_classes(classes_));
    split.labels.push_back(labelled ? found->second : kUnlabelled);
  }

 private:
  const std::vector<std::string>& classes_;
  bool values_;
  std::map<std::string_view, int32_t> numbers_;
};

ClassificationSplit encode_split(const std::vector<RowFile>& files, bool pair, const Labels& labels,
                                 ExampleEncoder& encoder, BadRows& bad) {
  ClassificationSplit split;
  split.pad_id = encoder.pad_id();
  int64_t before = 0;  // rows of the files before
  WorkProgress progress;
  for (const RowFile& file : files) {
    for (const TextRow& row : file.rows) {
      interruption_point();
      try {
        labels.add(row.label, file.labelled, split);
      } catch (const Error& error) {
        bad.add(file.path, row.line, error.what());
        continue;
      }
      encoder.add(row, pair, split);
      split.rows.push_back(before + row.number);
      if (progress.due())
        progress.show(concat("encoding ", file.path), static_cast<double>(&row - file.rows.data()),
                      static_cast<double>(file.rows.size()));
    }
    if (!file.rows.empty()) before += file.rows.back().number + 1;
  }
  return split;
}

}  // namespace

void LabelledTextOptions::describe(ConfigDescription<LabelledTextOptions>& d) {
  d.group<TokenizerOption>();
  d.group<LengthsOption>();
  d.group<HoldOutOptions>();
  d.group<SpecialTokensOption>();
  d.field("test_fraction", &LabelledTextOptions::test_fraction,
          "share of the examples that is held out for the test split, where all are in one place; "
          "0: none")
      .at_least(0)
      .below(1);
  d.list("classes", &LabelledTextOptions::classes,
         "the labels in the order of their classes; empty: those of the training rows, sorted");
  d.choice("bad_rows", &LabelledTextOptions::bad_rows, {"refuse", "skip"},
           "skip: rows that cannot be used are left out, counted and named");
}

void LabelledTextOptions::validate(const ConfigNode& at) const {
  if (validation_fraction + test_fraction >= 1)
    throw located_error(at.location_of("test_fraction"), Cause{ErrorCode::out_of_range},
                        "validation_fraction and test_fraction leave nothing for training");
  const std::set<std::string> different(classes.begin(), classes.end());
  if (classes.size() == 1 || different.size() != classes.size())
    throw located_error(at.location_of("classes"), Cause{ErrorCode::out_of_range},
                        "classes must be at least two different labels");
}

std::span<const char* const> split_names(Split split) {
  static constexpr std::array kTrain = {"train"}, kTest = {"test"};
  static constexpr std::array kValidation = {"validation", "valid", "val", "dev"};
  if (split == Split::validation) return kValidation;
  return split == Split::train ? kTrain : kTest;
}

void check_labelled_text(const DataConfig& config, const ConfigNode& section) {
  const TokenizerConfig& tokenizer = config.options.as<TokenizerOption>().tokenizer;
  if (tokenizer.kind == "word" && tokenizer.path.empty())
    throw located_error(section.location_of("tokenizer"),
                        Cause{ErrorCode::missing_key, "tokenizer"}, "kind ", config.kind,
                        " makes no word vocabulary: set tokenizer.path to one, or take another "
                        "tokenizer");
}

ClassificationDataset encode_texts(const TextSplits& texts, const DataConfig& config,
                                   BadRows& bad) {
  const auto& options = config.options.as<LabelledTextOptions>();
  ClassificationDataset data;
  data.layout = texts.layout;
  data.regression = texts.values;
  if (!texts.values)
    data.class_names = options.classes.empty() ? classes_of(texts) : options.classes;
  require(texts.values || data.class_names.size() >= 2,
          Cause{ErrorCode::out_of_range, "data.classes"},
          "a classifier needs at least two classes, and the rows have ",
          data.class_names.empty() ? "no labels" : concat("only '", data.class_names[0], "'"),
          "; name all in data.classes");
  data.classes = texts.values ? 1 : static_cast<int32_t>(data.class_names.size());
  const Labels labels(data.class_names, texts.values);
  data.tokenizer =
      options.of_checkpoint ? options.of_checkpoint : make_tokenizer(options.tokenizer);
  ExampleEncoder encoder(data.tokenizer, config.context, options.special_tokens == "own");
  data.vocabulary_size = encoder.vocabulary_size();
  data.begins_with_cls = true;
  for (const Split name : kSplits) {
    if (texts.of(name).empty()) continue;
    ClassificationSplit split = encode_split(texts.of(name), texts.pairs, labels, encoder, bad);
    require(split.size() > 0, Cause{ErrorCode::malformed, "", texts.of(name)[0].path},
            texts.of(name)[0].path, ": no row of the ", name_of(name), " split can be used");
    encoder.report(texts.unsplit ? "all examples" : name_of(name), data.notes);
    data.set(name, std::move(split));
  }
  for (std::string& note : bad.take_notes()) data.notes.push_back(std::move(note));
  if (!data.has(Split::train) || data.has(Split::validation)) return data;
  ClassificationSplit rest = *data.split(Split::train);
  if (texts.unsplit && options.test_fraction > 0) {
    auto [kept, test] = hold_out(rest, options.test_fraction, options.seed, false);
    rest = std::move(kept);
    data.set(Split::test, std::move(test));
  }
  const double left = texts.unsplit ? 1 - options.test_fraction : 1;
  auto [train, validation] =
      hold_out(rest, options.validation_fraction / left, options.seed, false);
  data.set(Split::train, std::move(train));
  data.set(Split::validation, std::move(validation));
  return data;
}

}  // namespace linnet
