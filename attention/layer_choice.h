// Which mechanism each layer of a model has: `attention:` is one section for all layers, or a list
// of sections each of which names its layers.
#pragma once

#include <vector>

#include "attention/mechanism.h"

namespace linnet {

// The mechanism of some layers.
struct LayerChoice {
  std::vector<int64_t> layers;  // ascending
  ConfigNode attention;         // {name: lavo, rank: 64}, without `layers`
};

// The sections of `attention` for a model of that many layers. In a list each section has `layers:
// 3`, `layers: 0-5` or a list of these, counted from 0. Throws UsageError, naming the place, unless
// every layer is covered exactly once.
std::vector<LayerChoice> layer_choices(const ConfigNode& attention, int64_t layers);

// The section `attention`, parsed once.
struct ResolvedAttention {
  ConfigNode node;     // with all parameters of its mechanisms filled in; reads back to itself
  MixerFactory mixer;  // of the layer that the options name, from typed parameters
};

// For a model of that many layers. In a list, layers of one section share the parameters that their
// mechanism ties across layers; layers of different sections do not. Throws UsageError for unknown
// names and parameters, and where a mechanism lacks that form.
ResolvedAttention resolve_attention(const ConfigNode& attention, Form form, int64_t layers);

// Throws UsageError, whose key is kv_heads, where a layer's mechanism needs keys and values for
// every head of queries.
void require_grouped_queries(const ConfigNode& attention, int64_t layers);

}  // namespace linnet
