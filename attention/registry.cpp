// The list of attention mechanisms, and how recipes find them.
#include "attention/registry.h"

#include "attention/abc_cluster/abc_cluster.h"
#include "attention/abc_compressive/abc_compressive.h"
#include "attention/abc_dilated/abc_dilated.h"
#include "attention/abc_l2g/abc_l2g.h"
#include "attention/abc_mlp/abc_mlp.h"
#include "attention/abc_random/abc_random.h"
#include "attention/abc_window/abc_window.h"
#include "attention/augment.h"
#include "attention/augmented_linear/augmented_linear.h"
#include "attention/bigbird/bigbird.h"
#include "attention/clustered/clustered.h"
#include "attention/cosformer/cosformer.h"
#include "attention/define.h"
#include "attention/deltanet/deltanet.h"
#include "attention/eva/eva.h"
#include "attention/flash/flash.h"
#include "attention/flash_global/flash_global.h"
#include "attention/flash_local/flash_local.h"
#include "attention/flash_quad/flash_quad.h"
#include "attention/gated_linear/gated_linear.h"
#include "attention/grouped_linear/grouped_linear.h"
#include "attention/kernelized/kernelized.h"
#include "attention/lara/lara.h"
#include "attention/lavo/lavo.h"
#include "attention/leapformer/leapformer.h"
#include "attention/linear/linear.h"
#include "attention/linformer/linformer.h"
#include "attention/local/local.h"
#include "attention/longformer/longformer.h"
#include "attention/longshort/longshort.h"
#include "attention/luna/luna.h"
#include "attention/mamba2/mamba2.h"
#include "attention/nystromformer/nystromformer.h"
#include "attention/performer/performer.h"
#include "attention/probsparse/probsparse.h"
#include "attention/reformer/reformer.h"
#include "attention/relu/relu.h"
#include "attention/retention/retention.h"
#include "attention/rfa/rfa.h"
#include "attention/rope_linear/rope_linear.h"
#include "attention/s4d/s4d.h"
#include "attention/skyformer/skyformer.h"
#include "attention/softmax/softmax.h"
#include "attention/sparse_fixed/sparse_fixed.h"
#include "attention/synthesizer/synthesizer.h"
#include "attention/t2r/t2r.h"
#include "attention/transnormer_diag/transnormer_diag.h"
#include "attention/transnormer_norm/transnormer_norm.h"
#include "attention/yoso/yoso.h"
#include "core/suggest.h"

namespace linnet {
namespace {

void add_to(std::vector<Mechanism>& list, Mechanism mechanism) {
  for (const Mechanism& known : list) {
    require_usage(known.name != mechanism.name, "attention mechanism '", mechanism.name,
                  "' is registered twice; choose another name");
  }
  require_usage(mechanism.bind && mechanism.schema && mechanism.resolve && mechanism.traits_of,
                "attention mechanism '", mechanism.name,
                "' is incomplete; build its entry with define_mechanism");
  list.push_back(augmentable(std::move(mechanism)));
}

std::vector<Mechanism>& all() {
  static std::vector<Mechanism> list = [] {
    std::vector<Mechanism> result;
    add_to(result, softmax_mechanism());
    add_to(result, local_mechanism());
    add_to(result, linear_mechanism());
    add_to(result, relu_mechanism());
    add_to(result, cosformer_mechanism());
    add_to(result, leapformer_mechanism());
    add_to(result, rope_linear_mechanism());
    add_to(result, performer_mechanism());
    add_to(result, rfa_mechanism());
    add_to(result, t2r_mechanism());
    add_to(result, transnormer_norm_mechanism());
    add_to(result, abc_mlp_mechanism());
    add_to(result, abc_window_mechanism());
    add_to(result, abc_dilated_mechanism());
    add_to(result, abc_l2g_mechanism());
    add_to(result, abc_compressive_mechanism());
    add_to(result, abc_random_mechanism());
    add_to(result, abc_cluster_mechanism());
    add_to(result, linformer_mechanism());
    add_to(result, lavo_mechanism());
    add_to(result, transnormer_diag_mechanism());
    add_to(result, luna_mechanism());
    add_to(result, flash_quad_mechanism());
    add_to(result, flash_mechanism());
    add_to(result, yoso_mechanism());
    add_to(result, lara_mechanism());
    add_to(result, probsparse_mechanism());
    add_to(result, eva_mechanism());
    add_to(result, longshort_mechanism());
    add_to(result, reformer_mechanism());
    add_to(result, clustered_mechanism());
    add_to(result, flash_local_mechanism());
    add_to(result, flash_global_mechanism());
    add_to(result, grouped_linear_mechanism());
    add_to(result, augmented_linear_mechanism());
    add_to(result, longformer_mechanism());
    add_to(result, bigbird_mechanism());
    add_to(result, sparse_fixed_mechanism());
    add_to(result, nystromformer_mechanism());
    add_to(result, kernelized_mechanism());
    add_to(result, skyformer_mechanism());
    add_to(result, s4d_mechanism());
    add_to(result, synthesizer_mechanism());
    add_to(result, retention_mechanism());
    add_to(result, gated_linear_mechanism());
    add_to(result, mamba2_mechanism());
    add_to(result, deltanet_mechanism());
    return result;
  }();
  return list;
}

// The end of a sentence about a name that is none.
constexpr const char* kOfAPlugin = " (one of a plugin needs --plugin PATH)";

// The `name` of a section, which must be that of a mechanism.
std::string read_name(const ConfigNode& attention) {
  std::vector<std::string> names;
  for (const Mechanism& mechanism : all()) names.push_back(mechanism.name);
  try {
    return read_kind(attention, "name", names);
  } catch (const UsageError& error) {
    if (error.code() != ErrorCode::unknown_name) throw;
    throw UsageError(error.cause(), error.what() + std::string(kOfAPlugin));
  }
}

}  // namespace

const std::vector<Mechanism>& mechanisms() {
  return all();
}

const Mechanism& find_mechanism(std::string_view name) {
  std::vector<std::string> names;
  for (const Mechanism& mechanism : all()) {
    if (mechanism.name == name) return mechanism;
    names.push_back(mechanism.name);
  }
  throw UsageError({ErrorCode::unknown_name, "name"},
                   concat("there is no attention mechanism '", name, "': ", suggestion(name, names),
                          kOfAPlugin));
}

void register_mechanism(Mechanism mechanism) {
  add_to(all(), std::move(mechanism));
}

MixerFactory make_mixer_factory(const ConfigNode& attention, Form form) {
  const Mechanism& mechanism = find_mechanism(read_name(attention));
  ConfigNode parameters = attention;
  parameters.take("name");
  MixerFactory make = mechanism.bind(parameters);
  try {
    require_form(mechanism, parameters, form);
  } catch (const UsageError& error) {
    const std::string& option = error.key();
    throw located_error(attention.location_of(option.empty() ? "name" : option), error.cause(),
                        error.what());
  }
  return make;
}

}  // namespace linnet
