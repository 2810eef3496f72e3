#include "data/glue.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/files.h"
#include "data/row_files.h"

namespace linnet {
namespace {

RowColumns columns_of(std::string text, std::string pair, std::string label) {
  RowColumns columns;
  columns.text = std::move(text);
  columns.text_pair = std::move(pair);
  columns.label = std::move(label);
  columns.text_may_be_empty = true;
  return columns;
}

RowColumns without_header(RowColumns columns) {
  columns.header = false;
  return columns;
}

// Test files have the same texts and no label.
GlueTask task_of(std::string_view name, std::string_view folder, const RowColumns& columns,
                 std::vector<std::string> classes, std::array<int64_t, 3> rows) {
  GlueTask task{name, folder, columns, columns, std::move(classes), rows};
  task.test.label_may_be_missing = true;
  return task;
}

std::vector<GlueTask> make_tasks() {
  const std::vector<std::string> no_yes = {"0", "1"}, entailed = {"entailment", "not_entailment"};
  const auto pair = [](const char* label) { return columns_of("sentence1", "sentence2", label); };
  std::vector<GlueTask> tasks = {
      task_of("cola", "CoLA", without_header(columns_of("4", "", "2")), no_yes, {8551, 1043, 1063}),
      task_of("sst2", "SST-2", columns_of("sentence", "", "label"), no_yes, {67349, 872, 1821}),
      task_of("mrpc", "MRPC", columns_of("#1 String", "#2 String", "Quality"), no_yes,
              {3668, 408, 1725}),
      task_of("stsb", "STS-B", pair("score"), {}, {5749, 1500, 1379}),
      task_of("qqp", "QQP", columns_of("question1", "question2", "is_duplicate"), no_yes,
              {363846, 40430, 390965}),
      task_of("mnli", "MNLI", pair("gold_label"), {"entailment", "neutral", "contradiction"},
              {392702, 9815, 9796}),
      task_of("qnli", "QNLI", columns_of("question", "sentence", "label"), entailed,
              {104743, 5463, 5463}),
      task_of("rte", "RTE", pair("label"), entailed, {2490, 277, 3000}),
      task_of("wnli", "WNLI", pair("label"), no_yes, {635, 71, 146}),
  };
  for (GlueTask& task : tasks) {
    if (task.name == "cola") task.test = columns_of("sentence", "", "label");
    task.test.label_may_be_missing = true;
    if (task.name == "qqp") task.drops_rows = true;
    if (task.name == "mnli") task.mismatched = {392702, 9832, 9847};
  }
  return tasks;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// The files of a split; "" where there is none.
std::string file_of(const std::string& folder, Split split, const GlueTask& task,
                    const std::string& section) {
  const bool sections = task.mismatched[0] > 0 && split != Split::train;
  const char* name = split == Split::train ? "train" : split == Split::test ? "test" : "dev";
  const std::string path =
      join_path(folder, sections ? concat(name, "_", section, ".tsv") : concat(name, ".tsv"));
  return exists(path) ? path : "";
}

bool has_files(const std::string& folder, const GlueTask& task) {
  return std::any_of(kSplits.begin(), kSplits.end(),
                     [&](Split split) { return !file_of(folder, split, task, "matched").empty(); });
}

// The tasks that have folders in this one: "RTE, SST-2".
std::string tasks_below(const std::string& folder) {
  std::string names;
  for (const GlueTask& task : glue_tasks()) {
    if (has_files(join_path(folder, task.folder), task))
      names += concat(names.empty() ? "" : ", ", task.folder);
  }
  return names;
}

// The task of a configuration, and the folder of its files: data.path or, below it, the task's own.
std::pair<const GlueTask*, std::string> find_task(const DataConfig& config) {
  const auto& options = config.options.as<GlueOptions>();
  const GlueTask* task =
      options.task == "auto" ? glue_task_of_folder(config.path) : find_glue_task(options.task);
  if (task == nullptr) {
    const std::string below = tasks_below(config.path);
    throw UsageError(
        {ErrorCode::missing_key, "data.task", config.path},
        concat(config.path,
               below.empty()
                   ? ": the folder has not the name of a GLUE task, such as SST-2 or RTE; "
                     "name the task in data.task"
                   : concat(" holds several tasks of GLUE: ", below,
                            "; name the folder of one, or the task in data.task")));
  }
  const std::string below = join_path(config.path, task->folder);
  if (is_directory(below)) return {task, below};
  const GlueTask* named = glue_task_of_folder(config.path);
  require_usage(named == nullptr || named == task,
                Cause{ErrorCode::conflict, "data.task", config.path}, config.path,
                " has the name of the task ", named == nullptr ? "" : named->name,
                ", and data.task is ", task->name, "; make them one");
  return {task, config.path};
}

ClassificationDataset load_glue(const DataConfig& config) {
  const auto& options = config.options.as<GlueOptions>();
  const auto [task, folder] = find_task(config);
  BadRows bad(options.bad_rows == "skip" || task->drops_rows);
  TextSplits texts;
  texts.layout = concat("GLUE ", task->folder);
  texts.pairs = !task->columns.text_pair.empty();
  texts.values = task->classes.empty();
  std::array<std::vector<std::string>, 3> paths;
  if (!options.FileLists::empty()) {
    DataConfig in_folder = config;
    in_folder.path = folder;
    paths = listed_files(in_folder);
  }
  for (const Split split : kSplits) {
    std::vector<std::string>& files = paths[static_cast<size_t>(split)];
    if (options.FileLists::empty()) {
      const std::string path = file_of(folder, split, *task, options.section);
      if (!path.empty()) files.push_back(path);
    }
    for (const std::string& path : files)
      texts.of(split).push_back(
          read_rows(path, RowFormat::tsv, split == Split::test ? task->test : task->columns, bad));
  }
  require(std::any_of(texts.files.begin(), texts.files.end(),
                      [](const auto& files) { return !files.empty(); }),
          Cause{ErrorCode::not_found, "data.path", folder}, folder, " holds none of ",
          task->mismatched[0] > 0 ? "train.tsv, dev_matched.tsv and test_matched.tsv"
                                  : "train.tsv, dev.tsv and test.tsv");
  DataConfig own = config;
  own.options.as<GlueOptions>().classes = task->classes;
  ClassificationDataset data = encode_texts(texts, own, bad);
  const auto& published =
      options.section == "mismatched" && task->mismatched[0] > 0 ? task->mismatched : task->rows;
  for (const Split split : kSplits) {
    const auto i = static_cast<size_t>(split);
    int64_t rows = 0;
    for (const RowFile& file : texts.files[i]) rows += std::ssize(file.rows);
    if (rows > 0 && rows != published[i])
      data.notes.push_back(concat(name_of(split), ": ", rows, rows == 1 ? " row" : " rows",
                                  ", where the published ", task->folder, " has ", published[i]));
  }
  return data;
}

}  // namespace

std::span<const GlueTask> glue_tasks() {
  static const std::vector<GlueTask> tasks = make_tasks();
  return tasks;
}

const GlueTask* find_glue_task(std::string_view name) {
  const auto tasks = glue_tasks();
  const auto found = std::find_if(tasks.begin(), tasks.end(),
                                  [name](const GlueTask& task) { return task.name == name; });
  return found == tasks.end() ? nullptr : &*found;
}

const GlueTask* glue_task_of_folder(const std::string& path) {
  const std::string name = lower(file_name(path));
  const auto tasks = glue_tasks();
  const auto found = std::find_if(tasks.begin(), tasks.end(), [&](const GlueTask& task) {
    return name == task.name || name == lower(task.folder);
  });
  return found == tasks.end() ? nullptr : &*found;
}

void GlueOptions::describe(ConfigDescription<GlueOptions>& d) {
  std::vector<std::string> names = {"auto"};
  for (const GlueTask& task : glue_tasks()) names.emplace_back(task.name);
  d.field("task", &GlueOptions::task, "the task; auto: the folder's name, as in SST-2, says it")
      .choices(std::move(names));
  d.choice("section", &GlueOptions::section, {"matched", "mismatched"},
           "MNLI's development and test files");
  d.group<TokenizerOption>();
  d.group<LengthsOption>();
  d.group<HoldOutOptions>();
  d.group<FileLists>();
  d.group<SpecialTokensOption>();
  d.choice("bad_rows", &GlueOptions::bad_rows, {"refuse", "skip"},
           "skip: rows that cannot be used are left out, counted and named (QQP: always)");
}

DataKind glue_kind() {
  return {.name = "glue",
          .help = "a task of GLUE from its published files: the folder SST-2, RTE, MNLI, ...",
          .options = KindOptions(GlueOptions()),
          .gives = LabelledData{.load = load_glue},
          .likeness =
              [](const std::string& path) {
                const GlueTask* task = glue_task_of_folder(path);
                if (task != nullptr && has_files(path, *task)) return Likeness::files;
                return tasks_below(path).empty() ? Likeness::none : Likeness::folders;
              },
          .source_keys = {"task", "section", "train", "validation", "test", "validation_fraction",
                          "seed", "bad_rows"},
          .check = check_labelled_text};
}

}  // namespace linnet
