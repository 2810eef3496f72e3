// A stack of blocks and the norm behind them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "layers/block.h"
#include "layers/model_input.h"

namespace linnet {

// How a stack differs from others of the same model.
struct StackForm {
  int64_t layers = 0;
  Form form = Form::causal;
  bool reads_source = false;  // its blocks have cross-attention
  // As T5 has it: dropout after the norm behind the last block.
  bool drops_output = false;
  int64_t length = 0;  // that length-dependent mechanisms are made for
};

// What the blocks of a stack carry from call to call.
struct StackState {
  std::vector<MixerState> layers;  // of each block's self-attention
  std::vector<MixerState> cross;   // of its cross-attention, the encoded source; else none
};

class Stack {
 public:
  // Declares parameters in `scope`: "layers.N", "tied_attention", "tied_cross_attention" and
  // "final_norm".
  Stack(const ModelConfig& config, const StackForm& form, ParameterSet& parameters,
        const ParameterScope& scope, const MixerFactory& factory);

  // embedded [B,T,E] through all blocks. `state` may be null: the beginning of a sequence, of which
  // no state is kept; else it is updated, and begins empty. source [B,S,E]: where the blocks read
  // one; undefined where the state has it encoded.
  Variable operator()(Variable embedded, const Variable& source, MixerContext context,
                      StackState* state, bool recompute) const;
  // embedded [B,T,E] of sequences that have states of their own, with their sources encoded.
  // contexts[b] is of sequence b alone, `context` of all. Keeps no history.
  Variable rows(Variable embedded, const MixerContext& context, std::span<MixerContext> contexts,
                std::span<StackState* const> states) const;
  // embedded [N,1,E] of the nodes of a tree after a text whose states, of every layer, are
  // `states`: the vectors [N,1,E], and of each layer the states that paths lead to. Keeps no
  // history.
  struct Tree {
    Variable x;
    std::vector<std::function<MixerState(std::span<const int64_t> path)>> state_after;
  };
  Tree tree(Variable embedded, const MixerContext& context, std::vector<MixerNode> nodes,
            const std::vector<MixerState>& states, TreeStates how) const;
  const std::vector<std::unique_ptr<Block>>& blocks() const { return blocks_; }

 private:
  Variable finish(const ResidualSum& x, const MixerContext& context) const;
  BlockResult run(size_t layer, ResidualSum x, const Variable& source, const MixerContext& context,
                  const MixerState& state, const MixerState& cross, bool recompute_it) const;

  bool reads_source_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::vector<Variable>> block_parameters_;
  std::optional<Norm> final_norm_;
  double layer_dropout_, output_dropout_;
  std::string site_;  // of its own random draws
  std::string norm_site_, output_site_;
};

}  // namespace linnet
