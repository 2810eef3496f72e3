#include "attention/primitives/block_attention/tree.h"

#include <algorithm>
#include <map>
#include <vector>

#include "attention/primitives/block_attention/binding.h"
#include "attention/primitives/block_attention/running_softmax.h"
#include "attention/primitives/common/chunked.h"
#include "attention/primitives/common/tile_gemm.h"

namespace linnet {
namespace {

using namespace binding;
using namespace block_attention_detail;

constexpr const char* kName = "block attention of a tree";

// A key by its place behind the first past key, which nodes of one depth share; node -1: a past
// one.
struct Key {
  int64_t place, node;
};

// Where the keys of each node begin.
std::vector<int64_t> begins_of(const TreeNodes& nodes, const BlockAttentionOptions& options,
                               int64_t past, int64_t start) {
  const Segment segment{0, 0, nodes.deepest + 1, 0, nodes.deepest + 1, past, start, 0, 0};
  std::vector<int64_t> begins;
  for (const int64_t depth : nodes.depths) {
    begins.push_back(visible_keys(segment, options, depth).begin);
  }
  return begins;
}

// Nodes whose tiles hold the same keys as token by token: all where one tile holds what they see,
// else those whose keys begin at one place. By that place.
std::map<int64_t, std::vector<int64_t>> groups_of(const TreeNodes& nodes,
                                                  const std::vector<int64_t>& begins,
                                                  int64_t past) {
  const int64_t first = *std::min_element(begins.begin(), begins.end());
  const bool one_tile = past + nodes.deepest + 1 - first <= kKeys;
  std::map<int64_t, std::vector<int64_t>> groups;
  for (int64_t node = 0; node < nodes.size(); ++node) {
    groups[one_tile ? first : begins[static_cast<size_t>(node)]].push_back(node);
  }
  return groups;
}

// A group of nodes, and the keys that any of them sees, in order and cut into tiles.
struct GroupCall {
  const TreeNodes& nodes;
  const std::vector<int64_t>& begins;  // of all nodes
  const std::vector<int64_t>& members;
  int64_t past = 0;
  int64_t last_begin = 0;  // the greatest of the members'
  std::vector<Key> keys;
  std::vector<size_t> ends;  // of tiles: at most kKeys places each
  int64_t largest = 0;       // keys of a tile

  GroupCall(const TreeNodes& nodes, const std::vector<int64_t>& begins,
            const std::vector<int64_t>& members, int64_t first, int64_t past,
            const uint8_t* past_mask)
      : nodes(nodes), begins(begins), members(members), past(past) {
    std::vector<bool> read(static_cast<size_t>(nodes.size()));
    for (const int64_t member : members) {
      last_begin = std::max(last_begin, begins[static_cast<size_t>(member)]);
      for (int64_t node = member; node >= 0; node = nodes.parent(node)) {
        read[static_cast<size_t>(node)] = true;
      }
    }
    std::vector<std::vector<int64_t>> levels(static_cast<size_t>(nodes.deepest + 1));
    for (int64_t node = 0; node < nodes.size(); ++node) {
      if (read[static_cast<size_t>(node)]) {
        levels[static_cast<size_t>(nodes.depth(node))].push_back(node);
      }
    }
    int64_t places = 0;
    const auto begin_place = [&] {
      if (places == kKeys) {
        end_tile();
        places = 0;
      }
      ++places;
    };
    for (int64_t place = first; place < past; ++place) {
      if (!is_valid(past_mask, 0, place, past)) continue;
      begin_place();
      keys.push_back({place, -1});
    }
    for (int64_t depth = std::max<int64_t>(0, first - past); depth <= nodes.deepest; ++depth) {
      const std::vector<int64_t>& level = levels[static_cast<size_t>(depth)];
      if (level.empty()) break;
      begin_place();
      for (const int64_t node : level) keys.push_back({past + depth, node});
    }
    end_tile();
  }

 private:
  void end_tile() {
    const size_t begin = ends.empty() ? 0 : ends.back();
    largest = std::max(largest, static_cast<int64_t>(keys.size() - begin));
    ends.push_back(keys.size());
  }
};

// Some members of a group, one per vector lane, and what they see of the nodes: [N, kQueries].
struct Lanes {
  const int64_t* node;
  int64_t count;
  std::vector<uint8_t> sees;

  Lanes(const GroupCall& call, int64_t first)
      : node(call.members.data() + first),
        count(std::min(kQueries, std::ssize(call.members) - first)),
        sees(static_cast<size_t>(call.nodes.size() * kQueries)) {
    for (int64_t lane = 0; lane < count; ++lane) {
      for (int64_t above = node[lane]; above >= 0; above = call.nodes.parent(above)) {
        sees[static_cast<size_t>(above * kQueries + lane)] = 1;
      }
    }
  }
};

// Adds the bias to the logits of a key, and takes the key from nodes that do not see it.
template <typename T>
void finish_key(const BlockAttentionInputs<T>& in, const GroupCall& call, const Lanes& lanes,
                const Key& key, int64_t head, T* logits) {
  const T* bias =
      in.bias == nullptr ? nullptr : in.bias + (in.bias_heads == 1 ? 0 : head) * in.bias_count;
  if (key.node < 0 && bias == nullptr && key.place >= call.last_begin) return;
  const uint8_t* sees =
      key.node < 0 ? nullptr : &lanes.sees[static_cast<size_t>(key.node * kQueries)];
  for (int64_t lane = 0; lane < lanes.count; ++lane) {
    const int64_t node = lanes.node[lane];
    if (key.place < call.begins[static_cast<size_t>(node)] || (sees != nullptr && !sees[lane])) {
      logits[lane] = -std::numeric_limits<T>::infinity();
    } else if (bias != nullptr) {
      logits[lane] += bias[key.place - call.past - call.nodes.depth(node) + in.bias_origin];
    }
  }
}

template <typename T>
void mix_lanes(const BlockAttentionInputs<T>& in, const BlockAttentionOptions& options,
               const GroupCall& call, const Lanes& lanes, int64_t head, chunked::Scratch<T> scratch,
               const SequenceView<T>& y) {
  const int64_t K = in.q.K, V = in.v.K, group = head / (in.q.H / in.k.H);
  const int64_t k_stride = simd::round_up<T>(K), v_stride = simd::round_up<T>(V);
  const int64_t vectors = simd::round_up<T>(lanes.count);
  T* rows = scratch.take(vectors * k_stride);
  T* queries = scratch.take(k_stride * kQueries);
  T* keys = scratch.take(call.largest * k_stride);
  T* values = scratch.take(call.largest * v_stride);
  T* logits = scratch.take(call.largest * kQueries);
  RunningSoftmax<T> softmax;
  softmax.weighted = scratch.take(kQueries * v_stride);
  softmax.reset();
  std::fill_n(rows, vectors * k_stride, T{0});
  for (int64_t lane = 0; lane < lanes.count; ++lane) {
    simd::copy(in.q.at(0, lanes.node[lane], head), K, rows + lane * k_stride);
  }
  chunked::transpose(rows, k_stride, vectors, k_stride, queries, kQueries);
  const bool normalised = options.weights == BlockWeights::softmax;
  size_t begin = 0;
  for (const size_t end : call.ends) {
    const auto count = static_cast<int64_t>(end - begin);
    for (int64_t j = 0; j < count; ++j) {
      const Key& key = call.keys[begin + static_cast<size_t>(j)];
      const bool past = key.node < 0;
      const int64_t t = past ? key.place : key.node;
      copy_padded((past ? in.past_k : in.k).at(0, t, group), K, keys + j * k_stride, k_stride, 0);
      copy_padded((past ? in.past_v : in.v).at(0, t, group), V, values + j * v_stride, v_stride, 0);
    }
    tile_gemm<T>(count, vectors, K, static_cast<T>(options.scale), {keys, k_stride},
                 {queries, kQueries}, Write::overwrite, logits, kQueries);
    for (int64_t j = 0; j < count; ++j) {
      finish_key(in, call, lanes, call.keys[begin + static_cast<size_t>(j)], head,
                 logits + j * kQueries);
    }
    bool grew = false;
    if (normalised) {
      grew = softmax.absorb(count, vectors, logits);
    } else {
      for (int64_t j = 0; j < count; ++j) {
        weigh_row<T>(options, vectors, logits + j * kQueries, nullptr);
      }
    }
    for (int64_t lane = 0; begin > 0 && grew && lane < lanes.count; ++lane) {
      T* row = softmax.weighted + lane * v_stride;
      for (int64_t c = 0; c < v_stride; ++c) row[c] *= softmax.rescale[lane];
    }
    tile_gemm<T>(lanes.count, v_stride, count, T{1}, {logits, kQueries, true}, {values, v_stride},
                 begin > 0 ? Write::accumulate : Write::overwrite, softmax.weighted, v_stride);
    begin = end;
  }
  for (int64_t lane = 0; lane < lanes.count; ++lane) {
    const T factor = normalised ? T{1} / softmax.sum[lane] : T{1};
    const T* weighted = softmax.weighted + lane * v_stride;
    T* out = y.at(0, lanes.node[lane], head);
    for (int64_t c = 0; c < V; ++c) out[c] = weighted[c] * factor;
  }
}

// The rows of a tree as the tokens of one sequence.
template <typename T>
SequenceView<T> as_sequence(const Tensor& x) {
  return {x.data<std::remove_const_t<T>>(), 1, x.size(0), x.size(2), x.size(3)};
}

}  // namespace

Variable block_attention_tree(const BlockAttentionVariables& inputs,
                              const BlockAttentionContext& context, const TreeNodes& nodes) {
  const BlockAttentionOptions& options = context.options;
  require(options.causal && options.dropout == 0, kName,
          ": it is defined for causal patterns without dropout");
  const DType dtype = computing_type(inputs.q);
  const auto kept = [&](const Variable& x) { return converted(x, dtype, kName); };
  const BlockAttentionTensors given{kept(inputs.q),      kept(inputs.k),      kept(inputs.v),
                                    kept(inputs.past_k), kept(inputs.past_v), kept(inputs.bias)};
  for (const Tensor* x : {&given.q, &given.k, &given.v}) {
    check_sequence(*x, kName);
    require(x->size(0) == nodes.size() && x->size(1) == 1, kName,
            ": expected a row of one token for each of ", nodes.size(), " nodes, got ", x->shape());
  }
  const int64_t past = given.past_k.defined() ? given.past_k.size(1) : 0;
  check_shape(context.past_mask, {1, past}, kName, "past_mask");
  const int64_t start = context.positions.defined() ? context.positions.data<int32_t>()[0]
                                                    : context.place.time_offset;
  const Tensor y = Tensor::empty({nodes.size(), 1, given.q.size(2), given.v.size(3)}, dtype);
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    BlockAttentionInputs<T> in;
    in.q = as_sequence<const T>(given.q);
    in.k = as_sequence<const T>(given.k);
    in.v = as_sequence<const T>(given.v);
    in.past_k = view_of<T>(given.past_k);
    in.past_v = view_of<T>(given.past_v);
    in.past_mask = pointer<uint8_t>(context.past_mask);
    if (given.bias.defined()) {
      in.bias = given.bias.data<T>();
      in.bias_heads = given.bias.size(0);
      in.bias_count = given.bias.size(1);
      in.bias_origin = context.bias_origin;
    }
    in.spans = {{0, 0, nodes.deepest + 1, true, true, start}};
    check_block_attention(in, options);
    const std::vector<int64_t> begins = begins_of(nodes, options, past, start);
    for (const auto& [begin, members] : groups_of(nodes, begins, past)) {
      const GroupCall call(nodes, begins, members, begin, past, in.past_mask);
      for (int64_t first = 0; first < std::ssize(members); first += kQueries) {
        const Lanes lanes(call, first);
        const auto keys = static_cast<double>(call.keys.size());
        const double work = keys * static_cast<double>(in.q.H * lanes.count * (in.q.K + in.v.K));
        chunked::run_tasks(in.q.H, work, [&](int64_t head) {
          mix_lanes(in, options, call, lanes, head, chunked::Scratch<T>(), as_sequence<T>(y));
        });
      }
    }
  });
  return Variable(y.to(inputs.q.dtype()));
}

}  // namespace linnet
