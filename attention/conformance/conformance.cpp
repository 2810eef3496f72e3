// The list of checks, their exemptions, and the collection and printing of results.
#include "attention/conformance/conformance.h"

#include <algorithm>

#include "attention/conformance/internal.h"
#include "core/value_checks.h"
#include "core/yaml.h"

namespace linnet {
namespace {

using namespace conformance;

struct NamedCheck {
  const char* name;
  const char* help;
  std::string (*run)(const Setup&);
};

constexpr NamedCheck kChecks[] = {
    {"reference", "outputs equal the literal definition in double at every kind of length",
     check_reference},
    {"f32", "outputs and gradients are as exact as plain fp32 arithmetic", check_f32},
    {"bf16", "outputs are as exact as plain arithmetic on bf16 values", check_bf16},
    {"gradients", "finite differences in double: inputs, parameters, decode state",
     check_gradients},
    {"traits", "what the traits say of the forms and the length holds", check_traits},
    {"causality", "later tokens leave earlier outputs bit-equal", check_causality},
    {"chunks", "whole = split at every token = token by token", check_chunks},
    {"empty", "a call of 0 tokens gives 0 tokens and leaves the state as it was", check_empty},
    {"padding", "contents of padded positions, NaN included, change nothing", check_padding},
    {"packing", "packed documents equal separate ones", check_packing},
    {"rows", "batch rows do not see each other", check_rows},
    {"heads", "heads do not see each other unless the traits say so", check_heads},
    {"repeat", "same seed, same bits, forward and backward", check_repeat},
    {"round_trip", "parameters and state survive saving and loading", check_round_trip},
    {"state_size", "the state grows as the traits say", check_state_size},
    {"cost", "counted operations and bytes agree with the declared cost, and it with the growth",
     check_cost},
    {"limits", "the limiting cases of the specification", check_limits},
};

constexpr int64_t kVariantHeadWidth = 8;

std::string flow_text(const ConfigNode& parameters) {
  if (!parameters.is_map()) return parameters.is_null() ? "null" : parameters.raw();
  std::string text;
  for (const ConfigEntry& entry : parameters.entries()) {
    text += concat(text.empty() ? "" : ", ", entry.key, ": ", flow_text(entry.value));
  }
  return "{" + text + "}";
}

// Parameters, and differences of the mixer's options from the defaults.
std::string label_of(const Setup& setup) {
  std::string label = flow_text(setup.parameters);
  if (setup.options.rotary_width > 0) label += " with rotary positions";
  if (!setup.options.bias)
    label += concat(setup.options.rotary_width > 0 ? ", " : " ", "without bias");
  return label;
}

enum class Verdict { passes, fails, not_applicable };

Verdict verdict_of(const NamedCheck& check, const Setup& setup) {
  try {
    check.run(setup);
  } catch (const NotApplicable&) {
    return Verdict::not_applicable;
  } catch (const std::exception&) {
    return Verdict::fails;
  }
  return Verdict::passes;
}

// Of the check in all forms that the mechanism has: an exemption is needed where one fails.
Verdict verdict_of_forms(const NamedCheck& check, const Setup& setup) {
  Verdict verdict = verdict_of(check, setup);
  for (const Form form : {Form::noncausal, Form::causal, Form::cross}) {
    if (verdict == Verdict::fails) break;
    if (form == setup.form || !setup.traits.has(form)) continue;
    Setup other = setup;
    other.form = other.options.form = form;
    if (form == Form::cross) other.options.rotary_width = 0;
    const Verdict found = verdict_of(check, other);
    if (found != Verdict::not_applicable) verdict = found;
  }
  return verdict;
}

// Checks that the tolerances of rounded arithmetic let pass by chance, and those on a device, which
// are shorter, do not tell whether an exemption is needed.
bool tells_of_exemptions(const NamedCheck& check, const Setup& setup) {
  return setup.on_cpu() && check.run != check_f32 && check.run != check_bf16;
}

CheckResult run_check(const NamedCheck& check, const Setup& setup) {
  CheckResult result;
  result.check = check.name;
  result.parameters = label_of(setup);
  const auto exemption = setup.traits.exempt.find(check.name);
  if (exemption != setup.traits.exempt.end()) {
    const std::string& reason = exemption->second;
    const Verdict verdict =
        tells_of_exemptions(check, setup) ? verdict_of_forms(check, setup) : Verdict::fails;
    result.passed = result.exempt = verdict == Verdict::fails;
    result.message = result.passed
                         ? reason
                         : concat("trait exempt: says '", reason, "', but the check ",
                                  verdict == Verdict::passes
                                      ? "passes"
                                      : concat("'", check.name, "' applies to no form of ",
                                               setup.mechanism.name),
                                  "; remove the exemption");
    return result;
  }
  const ValueChecks values_are_checked;
  try {
    result.message = check.run(setup);
    result.passed = true;
  } catch (const NotApplicable& reason) {
    result.passed = result.exempt = true;
    result.message = reason.reason;
  } catch (const std::exception& error) {
    result.message = error.what();
  }
  return result;
}

// Whom to tell of checks, and where those of one parameter set begin among all.
struct ShownChecks {
  OnPart on_check = {};
  int64_t first = 0, total = 0;
};

std::vector<CheckResult> run_at(const Mechanism& mechanism, const ConfigNode& parameters,
                                const MixerOptions& options, Device device,
                                const ShownChecks& shown = {}) {
  std::vector<CheckResult> results;
  try {
    const Setup setup{mechanism, parameters, options.form, mechanism.traits_of(parameters),
                      options,   device};
    for (const auto& exemption : setup.traits.exempt) {
      const std::string& name = exemption.first;
      const bool known = std::any_of(std::begin(kChecks), std::end(kChecks),
                                     [&](const NamedCheck& check) { return check.name == name; });
      require(known && !exemption.second.empty(), "the exemption from '", name,
              "' needs the name of a check and a reason");
    }
    for (const NamedCheck& check : kChecks) {
      if (shown.on_check) {
        const auto done = shown.first + static_cast<int64_t>(results.size());
        shown.on_check(concat(check.name, " of ", mechanism.name, ", ", name_of(options.form), ", ",
                              label_of(setup)),
                       done, shown.total);
      }
      results.push_back(run_check(check, setup));
    }
  } catch (const std::exception& error) {
    results.push_back({"traits", flow_text(parameters), false, false, error.what()});
  }
  return results;
}

// Whether a mixer can be built with these options: some refuse rotary positions.
bool can_be_made(const Mechanism& mechanism, const ConfigNode& parameters,
                 const MixerOptions& options) {
  ParameterSet set;
  const ParameterScope root(set);
  try {
    mechanism.make(parameters, options, {root.child("own"), root.child("tied")});
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

}  // namespace

const std::vector<std::pair<std::string, std::string>>& conformance_checks() {
  static const std::vector<std::pair<std::string, std::string>> list = [] {
    std::vector<std::pair<std::string, std::string>> result;
    for (const NamedCheck& check : kChecks) result.emplace_back(check.name, check.help);
    return result;
  }();
  return list;
}

std::vector<CheckResult> run_conformance(const Mechanism& mechanism, Form form,
                                         const ConfigNode& parameters, Device device) {
  return run_at(mechanism, parameters, check_options(form, mechanism.check_head_width), device);
}

std::vector<CheckResult> run_conformance(const Mechanism& mechanism, Form form, Device device,
                                         const OnPart& on_check) {
  constexpr auto kCount = static_cast<int64_t>(std::size(kChecks));
  ShownChecks shown{on_check, 0, kCount * (2 + std::ssize(mechanism.variants))};
  std::vector<CheckResult> results = run_at(
      mechanism, ConfigNode::map(), check_options(form, mechanism.check_head_width), device, shown);
  const auto run = [&](const ConfigNode& parameters, const MixerOptions& options) {
    shown.first += kCount;
    // Options may take a form away.
    if (!mechanism.traits_of(parameters).has(form)) return;
    const std::vector<CheckResult> more = run_at(mechanism, parameters, options, device, shown);
    results.insert(results.end(), more.begin(), more.end());
  };
  const MixerOptions small = check_options(form, kVariantHeadWidth);
  MixerOptions rotary = small;
  rotary.bias = false;
  const bool defaults =
      mechanism.check_head_width <= kVariantHeadWidth || mechanism.variants.empty();
  if (defaults) rotary.width = rotary.heads * mechanism.check_head_width;
  const ConfigNode parameters =
      defaults ? ConfigNode::map() : parse_yaml(mechanism.variants[0], mechanism.name);
  // The layer rotates queries and keys of one sequence only.
  if (form != Form::cross) rotary.rotary_width = rotary.head_width() / 2;
  if (!can_be_made(mechanism, parameters, rotary)) rotary.rotary_width = 0;
  run(parameters, rotary);
  for (const std::string& variant : mechanism.variants) {
    run(parse_yaml(variant, mechanism.name + " variants"), small);
  }
  return results;
}

std::string format_results(const std::vector<CheckResult>& results) {
  std::string text;
  int passed = 0, failed = 0, exempt = 0;
  const std::string* parameters = nullptr;
  for (const CheckResult& result : results) {
    if (parameters == nullptr || *parameters != result.parameters) {
      text += "parameters " + result.parameters + "\n";
      parameters = &result.parameters;
    }
    const char* verdict = result.exempt ? "exempt" : result.passed ? "ok" : "FAILED";
    ++(result.exempt ? exempt : result.passed ? passed : failed);
    text +=
        concat("  ", result.check, std::string(12 - std::min<size_t>(12, result.check.size()), ' '),
               verdict, result.message.empty() ? "" : ": ", result.message, "\n");
  }
  return text + concat(passed, " passed, ", failed, " failed, ", exempt, " exempt\n");
}

}  // namespace linnet
