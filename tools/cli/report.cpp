// linnet report: runs beside each other and beside published numbers.
#include "recipes/engine/report.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "core/files.h"
#include "recipes/engine/report_export.h"
#include "recipes/engine/run_directory.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

// What is printed; all three exclude each other.
struct Format {
  bool json = false, csv = false, latex = false;

  bool any() const { return json || csv || latex; }
  std::string of(const std::vector<RunData>& runs,
                 const std::vector<ModelBenchLine>& benches) const {
    if (!any()) return report_text(runs, benches);
    const std::vector<ComparedTable> tables = compare(runs, benches);
    return json  ? report_json(runs, tables).dump() + "\n"
           : csv ? report_csv(runs, tables)
                 : report_latex(runs, tables);
  }
};

}  // namespace

void add_report(CLI::App& app, Command& chosen) {
  auto runs = std::make_shared<std::vector<std::string>>();
  auto html = std::make_shared<std::string>(), over = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("report",
                                         "one page of curves and tables for runs, beside the "
                                         "published numbers that their recipes name");
  auto format = std::make_shared<Format>();
  command
      ->add_option(
          "RUN_OR_FILE", *runs,
          "run directories, directories of runs, or files of 'linnet bench model --json' and "
          "'bench decode --json'")
      ->required();
  command
      ->add_option("--html", *html,
                   "file to write, a new one or a report (default: report.html in the first of "
                   "them, beside it where that is a file)")
      ->check(some_text());
  command
      ->add_option("--over", *over,
                   "a number of the recipes, such as data.pairs: also chart each run's best figure "
                   "against it")
      ->check(some_text());
  CLI::Option* json = command->add_flag("--json", format->json, "one JSON object on stdout");
  CLI::Option* csv =
      command->add_flag("--csv", format->csv, "tables as comma-separated lines on stdout");
  CLI::Option* latex = command->add_flag("--latex", format->latex, "tables as LaTeX on stdout");
  json->excludes(csv)->excludes(latex);
  csv->excludes(latex);
  command->footer(
      "A recipe's section 'published' names the rows of a paper's table that its runs measure: the "
      "report shows printed and measured figures (mean and deviation over seeds), their difference "
      "and ranks. Figures count when a run has finished; scores of a later 'linnet evaluate' "
      "join. A file of 'linnet bench model --json' or 'bench decode --json' adds tables and charts "
      "of speed and memory, and "
      "RCP where the runs have all accuracies that it takes.");
  command->callback([=, &chosen] {
    chosen = [=] {
      const std::string& first = runs->front();
      const bool is_lines = exists(first) && !is_directory(first);
      const std::string path =
          html->empty() ? join_path(is_lines ? parent_path(first) : first, "report.html") : *html;
      // That of a run is linnet's, whatever became of it.
      const bool free = may_hold_report(path) || (html->empty() && is_run(first));
      require_usage(free, Cause{ErrorCode::conflict, "--html", path}, path,
                    " is no report of linnet, and would be lost; name a new file with --html, or "
                    "move it away");
      const std::string folder = parent_path(path);
      require_usage(html->empty() || is_directory(folder),
                    Cause{ErrorCode::not_found, "--html", path}, "--html ", path,
                    ": there is no folder ", folder, "; make it, or name a file elsewhere");
      std::vector<std::string> found;
      std::vector<ModelBenchLine> benches;
      for (const std::string& place : *runs) {
        if (exists(place) && !is_directory(place)) {
          for (ModelBenchLine& line : read_model_benches(place)) benches.push_back(std::move(line));
        } else {
          for (const std::string& run : find_runs(place)) found.push_back(run);
        }
      }
      const std::vector<RunData> data = read_runs(found);
      write_file_atomically(path, report_html(data, *over, benches));
      std::cout << format->of(data, benches);
      if (!format->any()) std::cout << "\n" << path << "\n";
      return 0;
    };
  });
}

}  // namespace linnet::cli
