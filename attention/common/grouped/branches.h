// The branches of grouped attention, which several mechanisms combine: inside groups of consecutive
// tokens, and over the groups before (Augmenting linear attention for decoders, sec. 4.1).
#pragma once

#include "attention/common/tree_support.h"

namespace linnet {

// The weight of a key in its query's own group. q^ and k^ are divided by their length:
//   relu2_l2  max(q^ . k^, 0)^2     as in the released checkpoints
//   softmax   softmax(q . k / sqrt(K))
//   flash     max(q . k / C, 0)^2   C: tokens of a group
enum class GroupKernel : uint8_t { relu2_l2, softmax, flash };

template <typename Params>
void describe_group_kernel(ConfigDescription<Params>& d) {
  d.choice(
      "kappa", &Params::kappa,
      {{"relu2_l2", GroupKernel::relu2_l2},
       {"softmax", GroupKernel::softmax},
       {"flash", GroupKernel::flash}},
      "weight of a key in its own group: relu(q^ . k^)^2 of vectors of length 1, softmax(q . k "
      "/ sqrt(K)), or relu(q . k / group)^2");
}
template <typename Params>
void describe_group(ConfigDescription<Params>& d) {
  d.field("group", &Params::group, "tokens of a group").range(1, 1 << 20).unit("tokens");
}

// x / |x| times sqrt(K), 0 for a zero vector (|x| is at least 1e-12). Two of them have the inner
// product K x^ . y^.
Variable unit_vectors(const Variable& x);

// Attention inside groups.
class GroupBranch {
 public:
  GroupBranch(GroupKernel kernel, int64_t group, const MixerOptions& options);
  // For the self forms. The decode state, if causal, has the last group - 1 keys (as this branch
  // uses them) and values: k, v, valid. Its names begin with `prefix`.
  AttentionMixer::MixResult mix(const MixInput& input, const MixerContext& context,
                                const MixerState& state, const std::string& prefix = "") const;
  // mix() of the nodes of a tree that follows a text, on the host.
  TreeMix tree(const MixInput& input, std::span<const MixerNode> nodes,
               const MixerState& state) const;
  MixerCost cost(const MixerShape& shape) const;
  // For the cross form: every query attends to the group of the source that has the number of its
  // own, which may be empty. Queries are at consecutive positions from context.place.time_offset;
  // keys and values [B,S,H,.] are those of the whole source, keys as keys() gives them, and
  // context.source_mask is theirs.
  Variable mix_paired(const MixInput& input, const MixerContext& context) const;
  MixerCost paired_cost(const MixerShape& shape) const;
  // Keys as this branch uses them.
  Variable keys(const Variable& k) const { return uses_unit_vectors() ? unit_vectors(k) : k; }
  bool uses_unit_vectors() const { return kernel_ == GroupKernel::relu2_l2; }

 private:
  BlockAttentionOptions pattern() const;
  GroupKernel kernel_;
  int64_t group_;
  MixerOptions options_;
};

// Linear attention over groups: noncausal and cross over all keys, causal over the groups before
// the query's own, or the mean of these groups' sums. sum_j (q^_i . k^_j) v_j.
class GroupMemoryBranch {
 public:
  GroupMemoryBranch(int64_t group, const MixerOptions& options, bool mean = false)
      : group_(group), mean_(mean), options_(options) {}
  // The state, causal: the sums of group_prefix, `completed` and `all`; cross: S and z as linear
  // attention keeps them.
  AttentionMixer::MixResult mix(const MixInput& input, const MixerContext& context,
                                const MixerState& state) const;
  // mix() of the nodes of a tree that follows a text, on the host.
  TreeMix tree(const MixInput& input, std::span<const MixerNode> nodes,
               const MixerState& state) const;
  // Products and the state.
  MixerCost cost(const MixerShape& shape) const;

 private:
  // Queries and keys of length 1.
  static MixInput units(const MixInput& input);
  // Of the causal form.
  GroupPrefixOptions prefix() const;
  int64_t group_;
  bool mean_;
  MixerOptions options_;
};

// The literal definitions: y [T,H,V] += factor * the branch.
template <typename Number>
void add_group_definition(const ReferenceSequence<Number>& s, GroupKernel kernel, int64_t group,
                          std::vector<Number>& y);
template <typename Number>
void add_group_memory_definition(const ReferenceSequence<Number>& s, int64_t group, Number factor,
                                 std::vector<Number>& y, bool mean = false);

}  // namespace linnet
