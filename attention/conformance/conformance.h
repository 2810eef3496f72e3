// The conformance suite: checks that every registered mechanism passes in every form it declares.
#pragma once

#include <string>
#include <vector>

#include "attention/mechanism.h"
#include "core/progress.h"

namespace linnet {

struct CheckResult {
  std::string check;       // "causality"
  std::string parameters;  // YAML flow text of the parameter set that ran
  bool passed = false;
  // Not run: the mechanism's traits exempt it (the message gives their reason), or the check does
  // not apply to this form.
  bool exempt = false;
  std::string message;  // the measured value, or how the check failed
};

// Names of all checks with one line each, in the order in which they run:
//   reference    outputs equal the literal definition in double, at lengths 1, off and on chunks
//   f32, bf16    outputs and gradients are as near to double as plain arithmetic in that precision
//   gradients    directional finite differences in double: inputs, parameters, decode state
//   traits       the traits that no other check looks at hold
//   causality    changing later tokens leaves earlier outputs bit-equal
//   chunks       whole = split at every token = token by token
//   empty        a call of 0 tokens gives 0 tokens and leaves the state as it was
//   padding      contents of padded positions, NaN included, change nothing
//   packing      packed documents = separate documents
//   rows, heads  batch rows are independent, and heads unless the traits say that they are coupled
//   repeat       same seed, same bits, forward and backward; dropout follows example numbers
//   round_trip   parameters and state survive saving and loading
//   state_size   the state grows, or not, as the traits say
//   cost         counted operations and bytes agree with the declared cost, and it with the growth
//   limits       the limiting cases of the specification
const std::vector<std::pair<std::string, std::string>>& conformance_checks();

// Runs all checks for one parameter set (without `name`) on a device. Never throws for a failing
// mechanism: an exception inside a check is that check's failure. On a CUDA device kernels compute
// in f32: checks that need double are left to the CPU, and the device's outputs and gradients are
// compared with the CPU's in double.
std::vector<CheckResult> run_conformance(const Mechanism& mechanism, Form form,
                                         const ConfigNode& parameters, Device device = {});
// The same for the defaults, every entry of `variants`, and once with rotary positions (self forms)
// and projections without bias. `on_check`, if any, is told of each check before it runs.
std::vector<CheckResult> run_conformance(const Mechanism& mechanism, Form form, Device device = {},
                                         const OnPart& on_check = {});

// One line per check, failures spelled out; the last line counts passed, failed and exempt checks.
std::string format_results(const std::vector<CheckResult>& results);

}  // namespace linnet
