// The interface of an attention mechanism to a transformer block.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/dropout.h"
#include "autograd/variable.h"
#include "core/random.h"
#include "layers/parameters.h"

namespace linnet {

// noncausal: every token sees all valid ones; causal: token t sees tokens <= t; cross: queries of
// one sequence read another (the source).
enum class Form : uint8_t { noncausal, causal, cross };
std::string_view name_of(Form form);
// Throws UsageError for anything but noncausal, causal, cross.
Form form_from_name(std::string_view name);

// Decode state (for softmax, the KV cache) that a mechanism carries from one call to the next, by
// name: fp32 (f64 in checks) or i64 tensors with the batch first, but requests
// (cache_places.h) and what is the same for all rows. Differentiable. Empty: the
// beginning of a sequence.
using MixerState = std::map<std::string, Variable>;

// Draws and choices of mixers in each call, by name. (Buffers are drawn once instead.)
struct CallDraws {
  // Used instead of fresh ones; on the host, f64 and i64.
  std::map<std::string, Tensor> given_draws, given_choices;
  // Draws and choices that the call used, the given ones included.
  std::map<std::string, Tensor> draws, choices;
};

// Everything about a batch besides its vectors.
struct MixerContext {
  Tensor positions;  // i32 [B,T]: position of each token inside its document
  // i32 [B,T] (cross: [B,S]): positions of the keys; undefined: those of the queries (cross: 0, 1,
  // ...).
  Tensor key_positions;
  Tensor key_mask;     // u8 [B,T], 1 = valid; undefined: all valid
  Tensor segments;     // i32 [B,T]: tokens see only their own segment; undefined: one per row
  Tensor source_mask;  // u8 [B,S], cross only
  DrawPlace place;     // keys of random draws
  RandomKey random;    // seed and step; a mixer adds its own site
  bool training = false;
  // Tensors that pass from layer to layer beside x, as the layer before left them, by a name that
  // the mechanism chooses: scope.tied's prefix and its own. Absent in the first layer that has it.
  MixerState streams;
  CallDraws* record = nullptr;  // null: fresh draws and choices, not recorded
};

// The draws of that name for this call, f64 on the host: the given ones, else the result of make();
// noted in the record. Throws UsageError when given draws have another shape.
Tensor drawn(const MixerContext& context, const std::string& name, const Shape& shape,
             const std::function<Tensor()>& make);
// The same for discrete choices: i32 on `device`.
Tensor chosen(const MixerContext& context, const std::string& name, const Shape& shape,
              Device device, const std::function<Tensor()>& make);

struct MixerResult {
  Variable y;               // [B,T,E]
  Variable context;         // input of the output projection; undefined where there is none
  MixerState state;         // causal: to continue after the last token; cross: the encoded source
  MixerState streams = {};  // for the next layer: the streams that this layer changed or began
};

// The result of a self-attention call of 0 tokens, x [B,0,E]: none, and the state as it was.
// Chunks, groups and landmarks are made of at least one token.
MixerResult nothing_mixed(const Variable& x, const MixerState& state);

// Sizes of one call on sequences from their beginning; heads and widths are the mixer's own.
struct MixerShape {
  int64_t batch = 1;
  int64_t queries = 0;       // T
  int64_t keys = 0;          // S, cross only
  DType dtype = DType::f32;  // of activations and parameters
};

// Cost of one forward call: products only; element-wise work (feature maps, softmax, masks) is not
// counted.
struct MixerCost {
  double projections = 0;  // multiply-adds of tokens with parameters
  double mixing = 0;       // multiply-adds of tokens with tokens, or with their summaries
  double bytes = 0;        // x, source, y, parameters, buffers, and the state left: each once
  double multiply_adds() const { return projections + mixing; }
};

// Properties of a mechanism, checked by the conformance suite.
struct MixerTraits {
  bool noncausal = false;
  bool causal = false;
  bool cross = false;
  // Causal decoding has a state; constant_state: its size does not grow with the sequence.
  bool decode_state = false;
  bool constant_state = false;
  // The output of a token depends on the total (padded) length.
  bool depends_on_length = false;
  // A head's output depends on other heads' inputs (beyond the projections).
  bool couples_heads = false;
  // Heads of queries can share heads of keys and values (MixerOptions::kv_heads).
  bool grouped_queries = false;
  // Work of the mixing as a function of the length: a power of T and the factors beside it, "T",
  // "T w", "T^2".
  std::string growth;
  // Checks of the suite that cannot hold, each with its reason.
  std::map<std::string, std::string> exempt;

  bool has(Form form) const;
  // The power of T in `growth`. Throws Error for text of another form.
  double growth_exponent() const;
};

// Options with which a mixer is built.
struct MixerOptions {
  int64_t width = 0;  // E
  int64_t heads = 0;  // H; E must be a multiple
  // G, heads of keys and values, each read by H / G consecutive heads of queries; 0: H. Others than
  // H only where the mechanism's traits say grouped_queries.
  int64_t kv_heads = 0;
  Form form = Form::causal;
  // Longest sequence that training uses: mechanisms with a length (cosFormer) are made for it.
  int64_t max_length = 0;
  int64_t layer = 0;
  double dropout = 0;           // of attention probabilities, where the mechanism has them
  int64_t rotary_width = 0;     // channels per head that rotary positions rotate; 0: none
  bool bias = true;             // on the projections
  std::string init = "xavier";  // of the projections: see projection_init
  int64_t head_width() const { return width / heads; }
  int64_t key_heads() const { return kv_heads > 0 ? kv_heads : heads; }
  int64_t key_width() const { return key_heads() * head_width(); }
};

// Initial values of a projection [out, in]: "xavier" (uniform, gain), "uniform" (+-1/sqrt(in)) or
// "normal" (deviation 0.02). Throws UsageError for another name.
Initializer projection_init(std::string_view style, double gain, int64_t fan_in, int64_t fan_out);

// Names of a mixer's parameters: its own, and those tied across the layers of one attention: entry.
struct MixerScope {
  ParameterScope own;
  ParameterScope tied;
};

// A sequence of a batch whose sequences are at different places, each with a state of its own.
struct MixerRow {
  MixerContext context;  // of this sequence alone; its streams are updated
  MixerState state;      // updated
};

// A token of a tree that follows a text: it reads the text, the nodes above it and itself.
struct MixerNode {
  MixerContext context;  // of this token alone; its streams are updated
  int64_t parent = -1;   // an earlier node; -1: the text
};

// Attention of the nodes of a tree, and the states to which its paths lead.
struct TreeMix {
  Variable y;  // [N,1,E], of mix_tree() [N,1,H,V]
  // The state after the text and a path, nodes from one without a parent downwards, at least one.
  std::function<MixerState(std::span<const int64_t> path)> state_after;
};

// How the nodes of a tree know the text: by its one state, where the mechanism can, or each by a
// copy to which the nodes above it and it have been added.
enum class TreeStates : uint8_t { shared, copied };

// An attention mechanism in one layer. Stateless: the decode state travels in MixerState.
class TokenMixer {
 public:
  virtual ~TokenMixer() = default;
  // Self-attention over x [B,T,E] for any T, 0 too, continuing from `state`. Token-by-token
  // decoding is T = 1.
  virtual MixerResult forward(const Variable& x, const MixerContext& context,
                              const MixerState& state) const = 0;
  // Self-attention over x [B,T,E], sequence b continuing rows[b] as forward() does, with the same
  // bits. positions [B,T]: those of all rows. Mechanisms that share products of all rows override
  // it.
  virtual Variable forward_rows(const Variable& x, const Tensor& positions,
                                std::span<MixerRow> rows) const;
  // Self-attention over the nodes of a tree, x [N,1,E] at positions [N,1], after the text of
  // `state`. With copied states each node has the bits of forward() along its path in a SmallStep,
  // on a device to rounding, where the nodes of a depth are one batch.
  virtual TreeMix forward_tree(const Variable& x, const Tensor& positions,
                               std::span<MixerNode> nodes, const MixerState& state,
                               TreeStates states) const;
  // Queries x [B,T,E] read source [B,S,E]. A non-empty state is the encoded source of an earlier
  // call, and `source` is ignored.
  virtual MixerResult forward_cross(const Variable& x, const Variable& source,
                                    const MixerContext& context, const MixerState& state) const = 0;
  // The same for x [B,T,E] of sequences with sources of their own: that of b is *sources[b], a
  // state of forward_cross(), at rows[b].context. Mechanisms that share products of all rows
  // override it.
  virtual Variable forward_cross_rows(const Variable& x, std::span<MixerRow> rows,
                                      std::span<const MixerState* const> sources) const;
  // Cost of a forward call of that shape by the mechanism's equations, without the kernels' corner
  // tiles and padding. The conformance suite compares it with counted operations and bytes.
  virtual MixerCost cost(const MixerShape& shape) const = 0;
  // Longest sequence this instance can process; 0: no limit.
  virtual int64_t length_limit() const { return 0; }
  // Whether it replaces attention and feed-forward (gated attention units): the block around it is
  // then one norm, this mixer and one residual sum.
  virtual bool replaces_feed_forward() const { return false; }
  // Called after every optimizer update on the master weights (parameters.weight_of), before the
  // values are refreshed: here a mechanism restores constraints on its parameters.
  virtual void after_update(const ParameterSet& parameters) const { (void)parameters; }
};

// Builds the mixer of one layer.
using MixerFactory = std::function<std::unique_ptr<TokenMixer>(const MixerOptions& options,
                                                               const MixerScope& scope)>;

// Queries of all heads, [B,T,H,K], their keys and values, [B,T,G,K]; x and source are the inputs of
// their projections (undefined when a caller supplies q, k, v directly).
struct MixInput {
  Variable q, k, v;
  Variable x, source;
};

class MixBranches;

// Projections of an AttentionMixer before mix(); the result of an absent one is undefined in
// MixInput.
struct Projections {
  bool q = true, k = true, v = true;
  bool bias = true;  // on these, where the options have biases
};

// A mechanism between the usual four projections: derived classes define mix() and mix_cost().
class AttentionMixer : public TokenMixer {
 public:
  AttentionMixer(const MixerOptions& options, const MixerScope& scope,
                 const Projections& projections = {});
  MixerResult forward(const Variable& x, const MixerContext& context,
                      const MixerState& state) const final;
  // The projections are those of all rows, mix() is called for each.
  Variable forward_rows(const Variable& x, const Tensor& positions,
                        std::span<MixerRow> rows) const final;
  TreeMix forward_tree(const Variable& x, const Tensor& positions, std::span<MixerNode> nodes,
                       const MixerState& state, TreeStates states) const final;
  MixerResult forward_cross(const Variable& x, const Variable& source, const MixerContext& context,
                            const MixerState& state) const final;
  Variable forward_cross_rows(const Variable& x, std::span<MixerRow> rows,
                              std::span<const MixerState* const> sources) const final;
  MixerCost cost(const MixerShape& shape) const final;

  struct MixResult {
    Variable y;  // [B,T,H,V]
    MixerState state;
  };
  // The mechanism itself. For Form::cross with a non-empty state, k and v are undefined.
  virtual MixResult mix(const MixInput& input, const MixerContext& context,
                        const MixerState& state) const = 0;
  // mix() of the nodes of a tree, input [N,1,H,.], where they share the state of the text. Here: by
  // copies of it.
  virtual TreeMix mix_tree(const MixInput& input, std::span<const MixerNode> nodes,
                           const MixerState& state) const;
  // mix(), plus the branches that augment() added.
  MixResult attend(const MixInput& input, const MixerContext& context,
                   const MixerState& state) const;
  // From now on the output projection reads the sum of mix() and these branches.
  void augment(std::shared_ptr<const MixBranches> branches) { branches_ = std::move(branches); }
  const MixerOptions& options() const { return options_; }
  const Projections& projections() const { return projections_; }

 protected:
  // Cost of mix() besides the four projections: products, and bytes of the mechanism's own
  // parameters and buffers and of the state that it leaves. shape.keys is set in every form.
  virtual MixerCost mix_cost(const MixerShape& shape) const = 0;
  // mix_tree() by mix() along each path to a leaf, from the one state: to rounding what it is token
  // by token.
  TreeMix mix_paths(const MixInput& input, std::span<const MixerNode> nodes,
                    const MixerState& state) const;
  // TreeMix::state_after by mix() of a path, token by token or at once.
  enum class Commit : uint8_t { token_by_token, at_once };
  std::function<MixerState(std::span<const int64_t> path)> committed(
      const MixInput& input, std::span<const MixerNode> nodes, const MixerState& state,
      Commit commit) const;
  // The key of this layer's random draws.
  RandomKey draw_key(const MixerContext& context) const { return context.random.at(site_); }

 private:
  // q, k and v of x, at those positions.
  MixInput projected(const Variable& x, const Tensor& positions, const Tensor& key_positions) const;
  // Undefined where there is no such projection.
  Variable project(const Variable& x, const Variable& weight, const Variable& bias) const;
  MixerResult finish(const MixInput& input, const MixerContext& context,
                     const MixerState& state) const;
  // The output projection of rows, each [1,T,H,V].
  Variable output_of_rows(const std::vector<Variable>& rows) const;

  MixerOptions options_;
  Projections projections_;
  std::string site_;
  Variable q_weight_, k_weight_, v_weight_, out_weight_;
  Variable q_bias_, k_bias_, v_bias_, out_bias_;
  std::shared_ptr<const MixBranches> branches_;
};

// Branches on the q, k and v of any AttentionMixer, added to its output.
class MixBranches {
 public:
  virtual ~MixBranches() = default;
  // The terms added to y [B,T,H,V], and the tensors added to the state; `state` is the whole
  // mixer's. Names of states and parameters differ from those of every mechanism.
  virtual AttentionMixer::MixResult mix(const MixInput& input, const MixerContext& context,
                                        const MixerState& state) const = 0;
  // As AttentionMixer::mix_cost.
  virtual MixerCost cost(const MixerShape& shape) const = 0;
};

}  // namespace linnet
