// Primitives over the nodes of a tree that follows a text, against the same primitives along the
// path to each node, one token at a time.
#include <gtest/gtest.h>

#include "attention/primitives/block_attention/tree.h"
#include "attention/primitives/depthwise_conv/depthwise_conv.h"
#include "attention/primitives/depthwise_conv/tree.h"
#include "attention/primitives/group_prefix/tree.h"
#include "attention/primitives/orthogonal_memory/tree.h"
#include "attention/primitives/slot_attention/tree.h"
#include "core/error.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::ids;

constexpr int64_t kHeads = 4, kK = 5, kV = 19;

// Two nodes that the text alone is before, siblings of several depths.
TreeNodes tree() {
  return TreeNodes(std::vector<int64_t>{-1, 0, 0, 1, 1, 2, 4, -1, 6, 7});
}

Variable drawn(const Shape& shape, const char* name) {
  return Variable(test::random_tensor(shape, name, DType::f32));
}

Variable row(const Variable& x, int64_t node) {
  return x.defined() ? Variable(x.value().rows(node, node + 1)) : Variable();
}

std::vector<double> values(const Tensor& x) {
  return x.to(DType::f64).to_vector<double>();
}

void expect_equal(const Tensor& found, const Tensor& expected, const std::string& what) {
  const std::vector<double> a = values(found), b = values(expected);
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << what << " at " << i;
}

struct Pattern {
  const char* name;
  BlockAttentionOptions options;
  int64_t past;
};

std::vector<Pattern> patterns() {
  BlockAttentionOptions full;
  full.causal = true;
  full.scale = 0.4;
  BlockAttentionOptions blocks = full;
  blocks.pattern = BlockPattern::blocks;
  blocks.weights = BlockWeights::relu_squared;
  BlockAttentionOptions band = full;
  band.pattern = BlockPattern::band;
  std::vector<Pattern> all;
  for (const int64_t past : {0, 5, 61, 63, 64, 130}) all.push_back({"full", full, past});
  for (const int64_t block : {1, 3, 8, 64}) {
    blocks.block = block;
    for (const int64_t past : {0, 6, 7, 8, 62, 127}) all.push_back({"blocks", blocks, past});
  }
  blocks.block = 128;
  blocks.weights = BlockWeights::softmax;
  all.push_back({"wide blocks", blocks, 253});
  for (const int64_t left : {0, 3, 15}) {
    band.left = left;
    for (const int64_t past : {0, 2, 40}) all.push_back({"band", band, past});
  }
  for (const int64_t left : {60, 64, 99}) {
    band.left = left;
    for (const int64_t past : {3, 62, 98, 150}) all.push_back({"wide band", band, past});
  }
  return all;
}

TEST(TreePrimitives, BlockAttentionMasksByAncestry) {
  const TreeNodes nodes = tree();
  const int64_t count = nodes.size();
  for (const Pattern& pattern : patterns()) {
    const std::string name = concat(pattern.name, ", ", pattern.past, " before, block ",
                                    pattern.options.block, ", left ", pattern.options.left);
    const int64_t P = pattern.past, G = 2;
    BlockAttentionVariables in{drawn({count, 1, kHeads, kK}, "q"),
                               drawn({count, 1, G, kK}, "k"),
                               drawn({count, 1, G, kV}, "v"),
                               {},
                               {},
                               {}};
    BlockAttentionContext context;
    context.options = pattern.options;
    context.positions = ids({static_cast<int32_t>(P)}, {1, 1});
    std::vector<uint8_t> valid(static_cast<size_t>(P), 1);
    if (P > 0) {
      in.past_k = drawn({1, P, G, kK}, "past_k");
      in.past_v = drawn({1, P, G, kV}, "past_v");
      valid[static_cast<size_t>(P / 2)] = 0;
      context.past_mask = Tensor::from(valid, {1, P});
    }
    in.bias = drawn({kHeads, P + count}, "bias");
    context.bias_origin = P + count - 1;
    const Variable y = block_attention_tree(in, context, nodes);
    for (int64_t node = 0; node < count; ++node) {
      BlockAttentionVariables step{{}, {}, {}, in.past_k, in.past_v, in.bias};
      BlockAttentionContext at = context;
      std::vector<uint8_t> mask = valid;
      Variable own;
      for (const int64_t each : nodes.path(node)) {
        step.q = row(in.q, each);
        step.k = row(in.k, each);
        step.v = row(in.v, each);
        at.positions = ids({static_cast<int32_t>(mask.size())}, {1, 1});
        if (!mask.empty()) at.past_mask = Tensor::from(mask, {1, std::ssize(mask)});
        own = block_attention(step, at);
        step.past_k = carry_tokens(step.past_k, step.k, -1);
        step.past_v = carry_tokens(step.past_v, step.v, -1);
        mask.push_back(1);
      }
      expect_equal(row(y, node).value(), own.value(), concat(name, ", node ", node));
    }
  }
}

TEST(TreePrimitives, MoreNodesThanLanesOfATile) {
  std::vector<int64_t> parents{-1};
  for (int64_t node = 1; node < 150; ++node) parents.push_back((node - 1) / 3);
  const TreeNodes nodes(parents);
  const int64_t count = nodes.size();
  BlockAttentionContext context;
  context.options.causal = true;
  context.positions = ids({0}, {1, 1});
  const BlockAttentionVariables in{drawn({count, 1, kHeads, kK}, "q"),
                                   drawn({count, 1, kHeads, kK}, "k"),
                                   drawn({count, 1, kHeads, kV}, "v"),
                                   {},
                                   {},
                                   {}};
  const Variable y = block_attention_tree(in, context, nodes);
  for (const int64_t node : {int64_t{0}, int64_t{63}, int64_t{64}, int64_t{149}}) {
    BlockAttentionVariables step;
    BlockAttentionContext at = context;
    Variable own;
    int32_t position = 0;
    for (const int64_t each : nodes.path(node)) {
      step = {row(in.q, each), row(in.k, each), row(in.v, each), step.past_k, step.past_v, {}};
      at.positions = ids({position++}, {1, 1});
      own = block_attention(step, at);
      step.past_k = carry_tokens(step.past_k, step.k, -1);
      step.past_v = carry_tokens(step.past_v, step.v, -1);
    }
    expect_equal(row(y, node).value(), own.value(), concat("node ", node));
  }
}

TEST(TreePrimitives, ConvolutionReadsTheNodesAbove) {
  const TreeNodes nodes = tree();
  const Variable x = drawn({nodes.size(), 1, kHeads, kV}, "x");
  for (const int64_t P : {0, 1, 3, 9}) {
    for (const int64_t taps : {1, 2, 5}) {
      const Variable filters = drawn({kHeads, taps}, "taps");
      Variable past;
      BlockAttentionContext context;
      context.positions = ids({static_cast<int32_t>(P)}, {1, 1});
      if (P > 0) past = drawn({1, P, kHeads, kV}, "past");
      const Variable y = depthwise_conv_tree(x, past, filters, context, nodes);
      for (int64_t node = 0; node < nodes.size(); ++node) {
        Variable before = past, own;
        BlockAttentionContext at = context;
        auto position = static_cast<int32_t>(P);
        for (const int64_t each : nodes.path(node)) {
          at.positions = ids({position++}, {1, 1});
          own = depthwise_conv(row(x, each), before, filters, taps - 1, at);
          before = carry_tokens(before, row(x, each), -1);
        }
        expect_equal(row(y, node).value(), own.value(), concat(P, " before, node ", node));
      }
    }
  }
}

TEST(TreePrimitives, GroupPrefixCompletesGroupsOnEachPath) {
  const TreeNodes nodes = tree();
  const int64_t count = nodes.size();
  const Variable q = drawn({count, 1, kHeads, kK}, "q"), k = drawn({count, 1, kHeads, kK}, "k"),
                 v = drawn({count, 1, kHeads, kV}, "v");
  for (const bool mean : {false, true}) {
    for (const int64_t group : {1, 2, 4, 9}) {
      for (int32_t P = 0; P < 10; ++P) {
        const GroupPrefixOptions options{group, false, mean, 0.7};
        GroupPrefixState text;
        if (P > 0) {
          text = group_prefix(drawn({1, P, kHeads, kK}, "q before"),
                              drawn({1, P, kHeads, kK}, "k before"),
                              drawn({1, P, kHeads, kV}, "v before"), {options, {}, {}, {}})
                     .state;
        }
        const Variable y = group_prefix_tree(q, k, v, options, P, nodes, text);
        for (int64_t node = 0; node < count; ++node) {
          const std::string name = concat("group ", group, ", ", P, " before, node ", node);
          GroupPrefixState state = text;
          Variable own;
          int32_t position = P;
          const std::vector<int64_t> path = nodes.path(node);
          for (const int64_t each : path) {
            const GroupPrefixResult step =
                group_prefix(row(q, each), row(k, each), row(v, each),
                             {options, {}, {}, ids({position++}, {1, 1})}, state);
            own = step.y;
            state = step.state;
          }
          expect_equal(row(y, node).value(), own.value(), name);
          const GroupPrefixState after = group_prefix_after(k, v, options, P, path, text);
          expect_equal(after.completed.value(), state.completed.value(), name);
          expect_equal(after.all.value(), state.all.value(), name);
        }
      }
    }
  }
}

TEST(TreePrimitives, OrthogonalMemoryHasAStateForEachNode) {
  const TreeNodes nodes = tree();
  const int64_t count = nodes.size(), rank = 3;
  const Variable q = drawn({count, 1, kHeads, kK}, "q"), f = drawn({count, 1, kHeads, kK}, "f");
  for (const Shape& shape : {Shape{kHeads, rank, kK}, Shape{rank, kHeads * kK}}) {
    const Variable basis = drawn(shape, "basis");
    for (const MemoryScope scope : {MemoryScope::completed_windows, MemoryScope::prefix}) {
      for (int32_t P = 0; P < 9; ++P) {
        OrthogonalMemoryContext context;
        context.options.scope = scope;
        context.options.window = 4;
        context.options.scale = 0.8;
        OrthogonalMemoryCarry text;
        if (P > 0) {
          text = orthogonal_memory(drawn({1, P, kHeads, kK}, "q before"),
                                   drawn({1, P, kHeads, kK}, "f before"), basis, {}, context)
                     .carry;
        }
        context.positions = ids({P}, {1, 1});
        const OrthogonalMemoryResult found =
            orthogonal_memory_tree(q, f, basis, text, context, nodes);
        for (int64_t node = 0; node < count; ++node) {
          const std::string name = concat(P, " before, node ", node);
          OrthogonalMemoryResult step;
          step.carry = text;
          OrthogonalMemoryContext at = context;
          int32_t position = P;
          for (const int64_t each : nodes.path(node)) {
            at.positions = ids({position++}, {1, 1});
            step = orthogonal_memory(row(q, each), row(f, each), basis, step.carry, at);
          }
          expect_equal(row(found.y, node).value(), step.y.value(), name);
          expect_equal(found.memory_tokens.rows(node, node + 1), step.memory_tokens, name);
          expect_equal(row(found.carry.completed, node).value(), step.carry.completed.value(),
                       name);
          expect_equal(row(found.carry.partial, node).value(), step.carry.partial.value(), name);
          expect_equal(found.carry.counts.rows(node, node + 1), step.carry.counts, name);
        }
      }
    }
  }
}

TEST(TreePrimitives, SlotsHaveAMemoryForEachDepth) {
  const TreeNodes nodes = tree();
  const int64_t count = nodes.size(), slots = 6;
  const SlotAttentionVariables in{drawn({count, 1, kHeads, kK}, "q"),
                                  drawn({count, 1, kHeads, kK}, "k"),
                                  drawn({count, 1, kHeads, kV}, "v"),
                                  drawn({count, 1, kHeads, slots}, "logits"),
                                  {}};
  for (const SlotControl control : {SlotControl::exp, SlotControl::sigmoid, SlotControl::relu}) {
    SlotAttentionContext context;
    context.options.control = control;
    for (const int64_t P : {0, 1, 7}) {
      SlotMemory text;
      if (P > 0) {
        text = slot_attention_causal({drawn({1, P, kHeads, kK}, "q before"),
                                      drawn({1, P, kHeads, kK}, "k before"),
                                      drawn({1, P, kHeads, kV}, "v before"),
                                      drawn({1, P, kHeads, slots}, "logits before"),
                                      {}},
                                     context)
                   .state;
      }
      const Variable o = slot_attention_tree(in, context, nodes, text);
      for (int64_t node = 0; node < count; ++node) {
        SlotAttentionResult step;
        step.state = text;
        for (const int64_t each : nodes.path(node)) {
          step = slot_attention_causal(
              {row(in.q, each), row(in.k, each), row(in.v, each), row(in.logits, each), {}},
              context, step.state);
        }
        expect_equal(row(o, node).value(), step.o.value(), concat(P, " before, node ", node));
      }
    }
  }
}

// The same with weights that are divided when they are written, by logits of their own for values,
// and without sums. Some slots stay empty for a while: relu.
TEST(TreePrimitives, SlotsWhoseWeightsAreDividedWhenTheyAreWritten) {
  const TreeNodes nodes = tree();
  const int64_t count = nodes.size(), slots = 6;
  const auto inputs = [&](int64_t rows, int64_t tokens, bool apart, const std::string& name) {
    const auto of = [&](int64_t width, const char* part) {
      return drawn({rows, tokens, kHeads, width}, (part + name).c_str());
    };
    return SlotAttentionVariables{of(kK, "q"), of(kK, "k"), of(kV, "v"), of(slots, "logits"),
                                  apart ? of(slots, "value logits") : Variable()};
  };
  for (const SlotControl control : {SlotControl::exp, SlotControl::sigmoid, SlotControl::relu}) {
    for (const auto& [accumulate, apart] : {std::pair(true, false), {true, true}, {false, true}}) {
      SlotAttentionContext context;
      context.options.control = control;
      context.write_time = true;
      context.accumulate = accumulate;
      const SlotAttentionVariables in = inputs(count, 1, apart, "");
      for (const int64_t P : {0, 1, 7}) {
        SlotMemory text;
        if (P > 0) text = slot_attention_causal(inputs(1, P, apart, " before"), context).state;
        const Variable o = slot_attention_tree(in, context, nodes, text);
        for (int64_t node = 0; node < count; ++node) {
          SlotAttentionResult step;
          step.state = text;
          for (const int64_t each : nodes.path(node)) {
            step = slot_attention_causal({row(in.q, each), row(in.k, each), row(in.v, each),
                                          row(in.logits, each), row(in.value_logits, each)},
                                         context, step.state);
          }
          expect_equal(row(o, node).value(), step.o.value(),
                       concat("control ", static_cast<int>(control), ", sums ", accumulate,
                              ", apart ", apart, ", ", P, " before, node ", node));
        }
      }
    }
  }
}

TEST(TreePrimitives, NodesStandAfterTheirParents) {
  EXPECT_THROW(TreeNodes(std::vector<int64_t>{0}), Error);
  EXPECT_THROW(TreeNodes(std::vector<int64_t>{-1, -2}), Error);
  const TreeNodes nodes = tree();
  EXPECT_EQ(nodes.depths, (std::vector<int64_t>{0, 1, 1, 2, 2, 2, 3, 0, 4, 1}));
  EXPECT_EQ(nodes.path(8), (std::vector<int64_t>{0, 1, 4, 6, 8}));
  EXPECT_EQ(nodes.depth_first(), (std::vector<int64_t>{0, 1, 3, 4, 6, 8, 2, 5, 7, 9}));
}

}  // namespace
}  // namespace linnet
