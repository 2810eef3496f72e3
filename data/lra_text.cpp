#include "data/lra_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "core/utf8.h"
#include "data/rows.h"

namespace linnet {
namespace {

constexpr std::array<const char*, 2> kClasses = {"neg", "pos"};
constexpr std::array<const char*, 2> kSplitFolders = {"train", "test"};
constexpr uint64_t kMaxReviewBytes = uint64_t{64} << 20;
constexpr size_t kMaxLineBytes = size_t{64} << 20;
constexpr std::array<const char*, 3> kPairFiles = {
    "new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv", "new_aan_pairs.test.tsv"};

// Byte sequences of one split, and how many were cut.
class ByteSplit {
 public:
  ByteSplit(const ByteOptions& options, int64_t sequences) : max_bytes_(options.max_bytes) {
    split.sequences_per_example = sequences;
    split.cls_drops_last = options.cls == "drop_last";
  }
  // Throws Error for what is no text.
  static void check(std::string_view text, const std::string& place) {
    require(!text.empty(), Cause{ErrorCode::malformed, "", place}, place, ": the text is empty");
    require_utf8(text, place);
  }
  // A text that check() accepts.
  void add(std::string_view text) {
    ++texts_;
    if (text.size() > static_cast<size_t>(max_bytes_)) ++cut_;
    ids_.clear();
    for (const char byte : text.substr(0, static_cast<size_t>(max_bytes_)))
      ids_.push_back(static_cast<unsigned char>(byte) + 1);
    split.add_sequence(ids_);
  }
  // Appends to the notes what was cut.
  void report(const std::string& name, std::vector<std::string>& notes) const {
    if (cut_ > 0)
      notes.push_back(concat(name, ": ", cut_, " of ", texts_, " texts are longer than ",
                             max_bytes_, " bytes and are cut to these"));
  }
  ClassificationSplit split;

 private:
  int64_t max_bytes_, texts_ = 0, cut_ = 0;
  std::vector<int32_t> ids_;
};

// "127_10.txt": a number and the stars.
bool is_review_name(std::string_view name) {
  if (!name.ends_with(".txt")) return false;
  name.remove_suffix(4);
  const size_t bar = name.find('_');
  const auto is_number = [](std::string_view text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return '0' <= c && c <= '9'; });
  };
  return bar != std::string_view::npos && is_number(name.substr(0, bar)) &&
         is_number(name.substr(bar + 1));
}

ByteSplit read_reviews(const std::string& folder, const ByteOptions& options) {
  ByteSplit result(options, 1);
  WorkProgress progress;
  for (size_t label = 0; label < kClasses.size(); ++label) {
    const std::string below = join_path(folder, kClasses[label]);
    require(is_directory(below), Cause{ErrorCode::not_found, "", below}, below,
            " does not exist; the reviews of aclImdb lie in train/{neg,pos} and test/{neg,pos}");
    const std::vector<std::string> names = file_system().list(below);
    const int64_t before = result.split.size();
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].starts_with('.') || !names[i].ends_with(".txt")) continue;
      interruption_point();
      const std::string path = join_path(below, names[i]);
      const std::string text = read_file(path, kMaxReviewBytes);
      ByteSplit::check(text, path);
      result.add(text);
      result.split.labels.push_back(static_cast<int32_t>(label));
      if (progress.due())
        progress.show(concat("reading ", below), static_cast<double>(i),
                      static_cast<double>(names.size()));
    }
    require(result.split.size() > before, Cause{ErrorCode::not_found, "", below}, below,
            " holds no *.txt");
  }
  return result;
}

// The lines of a file that may be larger than memory.
class FileLines {
 public:
  explicit FileLines(const std::string& path) : file_(path, OpenMode::read) {}
  // The next line without its end (LF or CRLF); nothing after the last one. Valid until the next
  // call.
  std::optional<std::string_view> next() {
    size_t end = buffer_.find('\n', at_);
    while (end == std::string::npos && !at_end_) {
      buffer_.erase(0, std::exchange(at_, 0));
      const size_t before = buffer_.size();
      require(before <= kMaxLineBytes, Cause{ErrorCode::malformed, "", file_.path()}, file_.path(),
              ":", number_ + 1, ": this line has more than ", kMaxLineBytes, " bytes");
      buffer_.resize(before + kBlockBytes);
      const size_t count = file_.read(std::span(buffer_).subspan(before));
      buffer_.resize(before + count);
      read_ += count;
      at_end_ = count < kBlockBytes;
      end = buffer_.find('\n', before);
    }
    if (end == std::string::npos && at_ == buffer_.size()) return std::nullopt;
    std::string_view line = std::string_view(buffer_).substr(at_, end - at_);
    at_ = end == std::string::npos ? buffer_.size() : end + 1;
    ++number_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }
  int64_t number() const { return number_; }  // of the line, from 1
  uint64_t read_bytes() const { return read_; }

 private:
  static constexpr size_t kBlockBytes = size_t{1} << 20;
  File file_;
  std::string buffer_;
  size_t at_ = 0;
  bool at_end_ = false;
  int64_t number_ = 0;
  uint64_t read_ = 0;
};

int32_t pair_label(std::string_view text, const std::string& place) {
  double value = -1;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool number = failed == std::errc() && end == text.data() + text.size();
  require(number && (value == 0 || value == 1), Cause{ErrorCode::malformed, "", place}, place,
          ": the label '", text, "' is neither 0.0 nor 1.0");
  return value == 1 ? 1 : 0;
}

struct Pair {
  int32_t label = 0;
  std::string_view a, b;
};

// Of a line, whose place begins the errors.
Pair parse_pair(std::string_view line, const std::string& place) {
  std::vector<std::string_view> columns;
  for (size_t at = 0; at <= line.size();) {
    const size_t end = std::min(line.find('\t', at), line.size());
    columns.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  require(columns.size() == 5, Cause{ErrorCode::malformed, "", place}, place, ": has ",
          columns.size(), " columns; expected 5: label, id1, id2, text1 and text2 between tabs");
  const Pair pair{pair_label(columns[0], place), columns[3], columns[4]};
  ByteSplit::check(pair.a, concat(place, ": text1"));
  ByteSplit::check(pair.b, concat(place, ": text2"));
  return pair;
}

ByteSplit read_pairs(const std::string& path, const ByteOptions& options, BadRows& bad) {
  ByteSplit result(options, 2);
  WorkProgress progress;
  const auto total = static_cast<double>(file_bytes(path));
  FileLines lines(path);
  while (const auto line = lines.next()) {
    interruption_point();
    try {
      const Pair pair = parse_pair(*line, concat(path, ":", lines.number()));
      result.add(pair.a);
      result.add(pair.b);
      result.split.labels.push_back(pair.label);
      result.split.rows.push_back(lines.number() - 1);
    } catch (const Error& error) {
      bad.add(path, lines.number(), error.what());
    }
    if (progress.due())
      progress.show(concat("reading ", file_name(path)), static_cast<double>(lines.read_bytes()),
                    total);
  }
  require(result.split.size() > 0, Cause{ErrorCode::malformed, "", path}, path,
          ": holds no examples");
  return result;
}

}  // namespace

void LraTextOptions::describe(ConfigDescription<LraTextOptions>& d) {
  describe_bytes(d);
  d.group<HoldOutOptions>();
  d.choice("validation_from", &LraTextOptions::validation_from, {"held_out", "test"},
           "held_out: a share of the training reviews; test: the test reviews, as in the "
           "published code");
}

void LraRetrievalOptions::describe(ConfigDescription<LraRetrievalOptions>& d) {
  describe_bytes(d);
  d.choice("bad_rows", &LraRetrievalOptions::bad_rows, {"refuse", "skip"},
           "skip: rows that cannot be used are left out, counted and named");
}

bool is_lra_text(const std::string& folder) {
  return std::any_of(kSplitFolders.begin(), kSplitFolders.end(), [&](const char* split) {
    return std::all_of(kClasses.begin(), kClasses.end(), [&](const char* label) {
      const std::string below = join_path(join_path(folder, split), label);
      if (!is_directory(below)) return false;
      const auto names = file_system().list(below);
      return std::any_of(names.begin(), names.end(), is_review_name);
    });
  });
}

DataKind lra_text_kind() {
  return {.name = "lra_text",
          .help = "IMDb's reviews and their sentiment, as bytes: aclImdb, its folder or archive",
          .options = KindOptions(LraTextOptions()),
          .gives = LabelledData{.load =
                                    [](const DataConfig& config) {
                                      return read_lra_text(config.path,
                                                           config.options.as<LraTextOptions>());
                                    }},
          .likeness =
              [](const std::string& path) {
                return is_lra_text(path) ? Likeness::files : Likeness::none;
              },
          .source_keys = {"validation_from", "validation_fraction", "seed"}};
}

ClassificationDataset read_lra_text(const std::string& folder, const LraTextOptions& options) {
  ClassificationDataset data;
  data.layout = "IMDb reviews by class (aclImdb), as bytes";
  data.vocabulary_size = kByteVocabulary;
  data.classes = 2;
  data.class_names = {kClasses.begin(), kClasses.end()};
  const std::string train = join_path(folder, "train"), test = join_path(folder, "test");
  require(is_directory(train) || is_directory(test), Cause{ErrorCode::not_found, "", folder},
          folder,
          exists(folder) ? " has neither train/ nor test/; kind lra_text needs the folder aclImdb"
                         : " does not exist");
  if (is_directory(test)) {
    ByteSplit read = read_reviews(test, options);
    read.report("test", data.notes);
    data.set(Split::test, std::move(read.split));
    if (options.validation_from == "test")
      data.splits[static_cast<size_t>(Split::validation)] = data.split(Split::test);
  }
  if (!is_directory(train)) return data;
  ByteSplit read = read_reviews(train, options);
  read.report("train and validation", data.notes);
  if (options.validation_from == "test") {
    data.set(Split::train, std::move(read.split));
  } else {
    auto [rest, held] = hold_out(read.split, options.validation_fraction, options.seed, false);
    data.set(Split::train, std::move(rest));
    data.set(Split::validation, std::move(held));
  }
  return data;
}

bool is_lra_retrieval(const std::string& folder) {
  return std::any_of(kPairFiles.begin(), kPairFiles.end(),
                     [&](const char* name) { return exists(join_path(folder, name)); });
}

ClassificationDataset read_lra_retrieval(const std::string& folder,
                                         const LraRetrievalOptions& options) {
  require(is_lra_retrieval(folder), Cause{ErrorCode::not_found, "", folder}, folder,
          exists(folder) ? " holds none of new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv and "
                           "new_aan_pairs.test.tsv"
                         : " does not exist");
  ClassificationDataset data;
  data.layout = "pairs of papers of the ACL Anthology Network, as bytes";
  data.vocabulary_size = kByteVocabulary;
  data.classes = 2;
  BadRows bad(options.bad_rows == "skip");
  for (const Split name : kSplits) {
    const std::string path = join_path(folder, kPairFiles[static_cast<size_t>(name)]);
    if (!exists(path)) continue;
    ByteSplit read = read_pairs(path, options, bad);
    read.report(std::string(name_of(name)), data.notes);
    data.set(name, std::move(read.split));
  }
  for (std::string& note : bad.take_notes()) data.notes.push_back(std::move(note));
  return data;
}

DataKind lra_retrieval_kind() {
  return {.name = "lra_retrieval",
          .help = "pairs of papers of the ACL Anthology Network, as bytes: new_aan_pairs.*.tsv",
          .options = KindOptions(LraRetrievalOptions()),
          .gives = LabelledData{.load =
                                    [](const DataConfig& config) {
                                      return read_lra_retrieval(
                                          config.path, config.options.as<LraRetrievalOptions>());
                                    }},
          .likeness =
              [](const std::string& path) {
                return is_lra_retrieval(path) ? Likeness::files : Likeness::none;
              },
          .source_keys = {"bad_rows"}};
}

}  // namespace linnet
