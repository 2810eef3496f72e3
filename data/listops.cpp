// ListOps expressions: values, spellings, files.
#include "data/listops.h"
#include "data/lines.h"
#include "data/words.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/error.h"
#include "core/files.h"

namespace linnet {
namespace {

constexpr std::array<std::string_view, 16> kSpelling = {
    "<pad>", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]"};

bool is_digit(int32_t id) {
  return id >= 1 && id <= 10;
}
bool is_operator(int32_t id) {
  return id >= kListopsMin && id <= kListopsSm;
}

int32_t apply(int32_t op, std::vector<int32_t> values) {
  if (op == kListopsMin) return *std::min_element(values.begin(), values.end());
  if (op == kListopsMax) return *std::max_element(values.begin(), values.end());
  if (op == kListopsSm) return std::accumulate(values.begin(), values.end(), 0) % 10;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void drop_brackets(std::vector<int32_t>& expression) {
  std::erase(expression, kListopsEnd);
}

}  // namespace

int32_t evaluate_listops(std::span<const int32_t> expression) {
  struct Open {
    int32_t op;
    std::vector<int32_t> values;
  };
  std::vector<Open> open;
  for (size_t i = 0; i < expression.size(); ++i) {
    const int32_t id = expression[i];
    if (is_operator(id)) {
      open.push_back({id, {}});
      continue;
    }
    int32_t value = id - 1;
    if (id == kListopsEnd) {
      require(!open.empty() && !open.back().values.empty(), Cause{ErrorCode::malformed},
              "ListOps: the ] at symbol ", i, " closes nothing");
      value = apply(open.back().op, std::move(open.back().values));
      open.pop_back();
    } else {
      require(is_digit(id), Cause{ErrorCode::malformed}, "ListOps: id ", id, " at symbol ", i,
              " is not a symbol");
    }
    if (!open.empty()) {
      open.back().values.push_back(value);
      continue;
    }
    require(i + 1 == expression.size(), Cause{ErrorCode::malformed},
            "ListOps: symbols follow the end of the expression");
    return value;
  }
  throw Error(Cause{ErrorCode::malformed}, "ListOps: the expression is not finished");
}

std::vector<int32_t> parse_listops(std::string_view text) {
  std::vector<int32_t> ids;
  for (size_t at = 0; at < text.size();) {
    if (is_space(text[at])) {
      ++at;
      continue;
    }
    const size_t begin = at;
    while (at < text.size() && !is_space(text[at])) ++at;
    const std::string_view symbol = text.substr(begin, at - begin);
    if (symbol == "(" || symbol == ")") continue;
    const auto found = std::find(kSpelling.begin() + 1, kSpelling.end(), symbol);
    require(found != kSpelling.end(), Cause{ErrorCode::unknown_name, symbol},
            "unknown ListOps symbol '", symbol, "'; expected digits, [MIN, [MAX, [MED, [SM and ]");
    ids.push_back(static_cast<int32_t>(found - kSpelling.begin()));
  }
  return ids;
}

std::string listops_lra_text(std::span<const int32_t> expression) {
  // Each list [OP a b ] is spelt ( ( ( [OP a ) b ) ] ): one pair of parentheses an argument and one
  // for the bracket, all opened before the operator. So arguments are counted first.
  std::vector<size_t> arguments(expression.size(), 0), open;
  for (size_t i = 0; i < expression.size(); ++i) {
    if (expression[i] == kListopsEnd) {
      require(!open.empty(), Cause{ErrorCode::malformed}, "ListOps: unbalanced brackets");
      open.pop_back();
    } else {
      if (!open.empty()) ++arguments[open.back()];
      if (is_operator(expression[i])) open.push_back(i);
    }
  }
  std::string text;
  size_t depth = 0;
  for (size_t i = 0; i < expression.size(); ++i) {
    const int32_t id = expression[i];
    if (!text.empty()) text += ' ';
    if (is_operator(id)) {
      for (size_t k = 0; k <= arguments[i]; ++k) text += "( ";
      text += kSpelling[static_cast<size_t>(id)];
      ++depth;
      continue;
    }
    text += kSpelling[static_cast<size_t>(id)];
    if (depth > 0) text += " )";
    // The closed list is itself an argument of the list around it.
    if (id == kListopsEnd && --depth > 0) text += " )";
  }
  return text;
}

ClassificationSplit read_listops_tsv(const std::string& path, bool brackets) {
  const std::string file = read_file(path);
  ClassificationSplit split;
  for (TextLines lines(without_byte_order_mark(file)); lines.next();) {
    const std::string_view line = lines.line();
    const int64_t number = lines.number();
    if (number == 1) {
      require(line == "Source\tTarget", Cause{ErrorCode::malformed, "", concat(path, ":1")}, path,
              ": expected the header 'Source TAB Target' of a ListOps file on line 1");
      continue;
    }
    const size_t tab = line.find('\t');
    try {
      require(tab != std::string_view::npos && tab + 2 == line.size() && line[tab + 1] >= '0' &&
                  line[tab + 1] <= '9',
              Cause{ErrorCode::malformed},
              "expected an expression, a tab and a digit; the file is ",
              lines.at_end() ? "truncated" : "damaged");
      std::vector<int32_t> ids = parse_listops(line.substr(0, tab));
      const int32_t label = line[tab + 1] - '0', value = evaluate_listops(ids);
      require(label == value, Cause{ErrorCode::conflict}, "the label is ", label,
              " but the expression has the value ", value);
      if (!brackets) drop_brackets(ids);
      split.add(ids, label);
    } catch (const Error& error) {
      throw Error({error.code(), error.key(), concat(path, ":", number)},
                  concat(path, ":", number, ": ", error.what()));
    }
  }
  require(split.size() > 0, Cause{ErrorCode::malformed, "", path}, path, ": holds no examples");
  return split;
}

const char* listops_file(Split split) {
  constexpr std::array<const char*, 3> kNames = {"basic_train.tsv", "basic_val.tsv",
                                                 "basic_test.tsv"};
  return kNames[static_cast<size_t>(split)];
}

ClassificationDataset read_listops(const std::string& folder, bool brackets) {
  require(is_directory(folder), Cause{ErrorCode::not_found, "", folder}, folder,
          exists(folder) ? " is a file" : " does not exist",
          "; kind listops needs a folder with basic_train.tsv, basic_val.tsv and basic_test.tsv");
  ClassificationDataset data;
  data.layout = "ListOps files of the Long Range Arena";
  data.vocabulary_size = kListopsVocabulary;
  data.classes = 10;
  for (const Split split : kSplits) {
    const std::string path = join_path(folder, listops_file(split));
    if (exists(path))
      data.splits[static_cast<size_t>(split)] =
          std::make_shared<ClassificationSplit>(read_listops_tsv(path, brackets));
  }
  const bool any =
      std::any_of(kSplits.begin(), kSplits.end(), [&](Split s) { return data.has(s); });
  require(any, Cause{ErrorCode::not_found, "", folder}, folder,
          " holds none of basic_train.tsv, basic_val.tsv and basic_test.tsv");
  return data;
}

void write_listops_tsv(const std::string& path, const ClassificationSplit& split) {
  std::string text = "Source\tTarget\n";
  for (int64_t i = 0; i < split.size(); ++i)
    text += concat(listops_lra_text(split.example(i)), '\t', split.labels[static_cast<size_t>(i)],
                   '\n');
  write_file_atomically(path, text);
}

}  // namespace linnet
