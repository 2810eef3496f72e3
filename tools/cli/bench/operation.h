// Shared by the benchmarks of single operations on the command line: options, table, JSON.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "core/progress.h"
#include "recipes/engine/bench/operation.h"
#include "tools/cli/bench/bench.h"

namespace linnet::cli {

// Options in words, as they are printed too.
struct OperationWords {
  std::string dtype = "f32", backend = "auto", device = "auto";
};

// Adds --lengths (`lengths` is its help) to --threads. Refers to its arguments.
void add_operation_options(CLI::App& command, OperationOptions& options, OperationWords& words,
                           const char* lengths);
// Throws UsageError for anything but f32 and bf16.
DType operation_dtype(const std::string& name);

// Prints points as they are measured, under a heading, unless `json`; erases `progress` before.
// Refers to its arguments.
OnPoint printed_at_once(const OperationOptions& options, const OperationWords& words, bool json,
                        WorkProgress& progress);
// The object that --json prints.
JsonValue report_json(const OperationOptions& options, const OperationWords& words,
                      const std::vector<OperationBench>& results);

}  // namespace linnet::cli
