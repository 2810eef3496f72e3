// Group memory: forward scans for y and dq, reverse scans for dk and dv. A warp has one column of
// one head's memory in shared memory, its lanes the rows of it.
#include "attention/primitives/cuda/group_memory.h"

#include "attention/primitives/cuda/block_attention_problem.h"

namespace linnet::cuda {
namespace {

using namespace block_attention_detail;

// Of a key: k and v, or with the roles turned around (for the gradients of k's side) v and k.
template <typename T>
struct Sides {
  bool turned;
  __device__ int64_t rows(const BlockProblem<T>& p) const { return turned ? p.V : p.K; }
  __device__ int64_t columns(const BlockProblem<T>& p) const { return turned ? p.K : p.V; }
  // The row vector and the column's number of key u.
  __device__ const T* left(const BlockProblem<T>& p, const Piece& piece, int64_t u,
                           int64_t g) const {
    return turned ? p.value(piece, u, g) : p.key(piece, u, g);
  }
  __device__ const T* right(const BlockProblem<T>& p, const Piece& piece, int64_t u,
                            int64_t g) const {
    return turned ? p.key(piece, u, g) : p.value(piece, u, g);
  }
  // Where (row r, column c) of the memory of (b, g) is.
  __device__ int64_t place(const BlockProblem<T>& p, int64_t b, int64_t g, int64_t r,
                           int64_t c) const {
    return ((b * p.G + g) * p.K + (turned ? c : r)) * p.V + (turned ? r : c);
  }
};

// Group `number` of a piece: its queries and keys, and whether the piece holds its last position.
struct Group {
  KeyRange queries, keys;
  bool complete;

  __device__ Group(const Piece& piece, int64_t group, int64_t number) {
    const int64_t begin = (piece.start / group + number) * group - piece.start;
    const int64_t end = begin + group;
    queries = {max(begin, int64_t{0}), min(end, piece.queries)};
    // Carried keys of the open group come first.
    keys = {max(piece.past + begin, max(int64_t{0}, piece.past - piece.start)),
            min(piece.past + end, piece.all_keys())};
    complete = end <= piece.queries;
  }
};
__device__ __forceinline__ int64_t groups_of(const Piece& piece, int64_t group) {
  if (piece.queries == 0) return 0;
  return (piece.start + piece.queries - 1) / group - piece.start / group + 1;
}

// The item of this warp: a row, a key head and a column.
struct Item {
  int64_t b, g, c;
  __device__ Item(int64_t heads, int64_t columns) {
    const int64_t item = global_warp();
    c = item % columns;
    g = item / columns % heads;
    b = item / columns / heads;
  }
};

// out[t,h,c] = scale * (memory before the query's group)^T probe[t,h]; after = the memory at the
// end. With probe q: y; turned, with probe dy: dq.
template <typename T>
__global__ void group_memory_read(BlockProblem<T> p, GroupMemoryOptions options, Sides<T> sides,
                                  const T* probe, const float* before, T* out, float* after) {
  SharedArena arena;
  const int64_t rows = sides.rows(p);
  const WarpFloats shared(arena, rows);
  const Item item(p.G, sides.columns(p));
  if (item.b >= p.B) return;
  const int lane = warp_lane();
  float* state = shared.mine();
  const int64_t heads = p.H / p.G;
  const auto scale = static_cast<float>(options.scale);
  for (int64_t t = 0; t == 0 || t < p.Tq;) {
    const Piece piece = p.piece(item.b, t);
    const bool continues = piece.query_begin == 0 && before != nullptr;
    for (int64_t r = lane; r < rows; r += kLanes) {
      state[r] = continues ? before[sides.place(p, item.b, item.g, r, item.c)] : 0.0f;
    }
    for (int64_t number = 0; number < groups_of(piece, options.group); ++number) {
      const Group group(piece, options.group, number);
      for (int64_t r = group.queries.begin; r < group.queries.end; ++r) {
        const int64_t at = piece.query_begin + r;
        for (int64_t h = item.g * heads; h < (item.g + 1) * heads; ++h) {
          const int64_t query = p.query(item.b, at, h);
          float total = 0;
          if (p.query_valid(item.b, at)) {
            for (int64_t i = lane; i < rows; i += kLanes) {
              total += state[i] * load(probe + query * rows + i);
            }
          }
          total = warp_sum(total);
          if (lane == 0) store(out + query * sides.columns(p) + item.c, scale * total);
        }
      }
      for (int64_t u = group.keys.begin; group.complete && u < group.keys.end; ++u) {
        if (!p.key_valid(piece, u)) continue;
        const float right = load(sides.right(p, piece, u, item.g) + item.c);
        const T* left = sides.left(p, piece, u, item.g);
        for (int64_t r = lane; r < rows; r += kLanes) state[r] += load(left + r) * right;
      }
    }
    t = piece.query_begin + piece.queries;
    if (t == 0) break;  // no tokens
  }
  for (int64_t r = lane; after != nullptr && r < rows; r += kLanes) {
    after[sides.place(p, item.b, item.g, r, item.c)] = state[r];
  }
}

// The gradients of keys, where the state is that of the memory after a group: turned, out = dk from
// v; else out = dv from k. Keys of groups that are not complete are left alone.
template <typename T>
__global__ void group_memory_write(BlockProblem<T> p, GroupMemoryOptions options, Sides<T> sides,
                                   const T* dy, const float* dafter, T* out, T* past_out,
                                   float* dbefore) {
  SharedArena arena;
  const int64_t rows = sides.rows(p), columns = sides.columns(p);
  const WarpFloats shared(arena, rows);
  const Item item(p.G, columns);
  if (item.b >= p.B) return;
  const int lane = warp_lane();
  float* state = shared.mine();
  const int64_t heads = p.H / p.G;
  const auto scale = static_cast<float>(options.scale);
  const T* row_side = sides.turned ? dy : p.q;
  const T* column_side = sides.turned ? p.q : dy;
  bool last = true;
  for (int64_t end = p.Tq; end > 0 || last;) {
    const Piece piece = p.piece(item.b, max(end - 1, int64_t{0}));
    for (int64_t r = lane; r < rows; r += kLanes) {
      const bool given = last && dafter != nullptr;
      state[r] = given ? dafter[sides.place(p, item.b, item.g, r, item.c)] : 0.0f;
    }
    last = false;
    for (int64_t number = groups_of(piece, options.group) - 1; number >= 0; --number) {
      const Group group(piece, options.group, number);
      for (int64_t u = group.keys.begin; group.complete && u < group.keys.end; ++u) {
        const bool past = u < piece.past;
        const bool valid = p.key_valid(piece, u);
        const T* left = sides.left(p, piece, u, item.g);
        float total = 0;
        for (int64_t r = lane; valid && r < rows; r += kLanes) total += state[r] * load(left + r);
        total = warp_sum(total);
        T* to = past ? past_out : out;
        const int64_t key =
            past ? item.b * p.P + u : item.b * p.Tk + piece.key_begin + u - piece.past;
        if (lane == 0 && to != nullptr) store(to + (key * p.G + item.g) * columns + item.c, total);
      }
      for (int64_t r = group.queries.begin; r < group.queries.end; ++r) {
        const int64_t at = piece.query_begin + r;
        if (!p.query_valid(item.b, at)) continue;
        for (int64_t h = item.g * heads; h < (item.g + 1) * heads; ++h) {
          const int64_t query = p.query(item.b, at, h);
          const float right = scale * load(column_side + query * columns + item.c);
          for (int64_t i = lane; i < rows; i += kLanes) {
            state[i] += load(row_side + query * rows + i) * right;
          }
        }
      }
    }
    end = piece.query_begin;
  }
  for (int64_t r = lane; dbefore != nullptr && r < rows; r += kLanes) {
    dbefore[sides.place(p, item.b, item.g, r, item.c)] = state[r];
  }
}

// One call's tensors.
struct Call {
  BlockAttentionTensors in;
  BlockAttentionSetting setting;
  GroupMemoryOptions options;
  Tensor before;
};

template <typename T>
Launch scan(const char* name, const BlockProblem<T>& p, Sides<T> sides) {
  return warps(name, p.B * p.G * (sides.turned ? p.K : p.V), sides.turned ? p.V : p.K);
}

template <typename T>
void forward_typed(const Call& call, const Tensor& y, const Tensor& after) {
  const BlockProblem<T> p = problem_of<T>(call.in, call.setting);
  const Sides<T> sides{false};
  launch(scan("group_memory_read", p, sides), group_memory_read<T>, p, call.options, sides, p.q,
         pointer_or_null<float>(call.before), pointer<T>(y), pointer<float>(after));
}

template <typename T>
void backward_typed(const Call& call, const Tensor& dy, const Tensor& dafter,
                    const BlockAttentionTensors& d, const Tensor& dbefore) {
  const BlockProblem<T> p = problem_of<T>(call.in, call.setting);
  const Sides<T> keys{true}, values{false};
  float* no_memory = nullptr;
  launch(scan("group_memory_read", p, keys), group_memory_read<T>, p, call.options, keys,
         pointer<T>(dy), pointer_or_null<float>(call.before), pointer<T>(d.q), no_memory);
  launch(scan("group_memory_write", p, keys), group_memory_write<T>, p, call.options, keys,
         pointer<T>(dy), pointer_or_null<float>(dafter), pointer<T>(d.k),
         pointer_or_null<T>(d.past_k), pointer_or_null<float>(dbefore));
  launch(scan("group_memory_write", p, values), group_memory_write<T>, p, call.options, values,
         pointer<T>(dy), pointer_or_null<float>(dafter), pointer<T>(d.v),
         pointer_or_null<T>(d.past_v), no_memory);
}

}  // namespace

GroupMemoryResult group_memory(const BlockAttentionVariables& inputs, const Variable& memory,
                               const BlockAttentionContext& context,
                               const GroupMemoryOptions& options) {
  BlockAttentionContext at = context;
  at.options = {};  // group memory has no pattern of its own
  const BlockAttentionTensors in = block_attention_tensors(inputs, at);
  const Call call{in, block_attention_setting(at), options,
                  memory.defined() ? memory.value() : Tensor()};
  require(options.group >= 1, "group memory: groups need a size of at least 1, got ",
          options.group);
  const Shape shape{in.q.size(0), in.k.size(2), in.q.size(3), in.v.size(3)};
  require(!memory.defined() || memory.shape() == shape, "group memory: expected a memory ", shape,
          ", got ", memory.defined() ? memory.shape() : Shape());
  const DType dtype = in.q.dtype();
  const Device device = in.q.device();
  const Tensor y =
      Tensor::empty({in.q.size(0), in.q.size(1), in.q.size(2), in.v.size(3)}, dtype, device);
  const Tensor after = Tensor::empty(shape, DType::f32, device);
  dispatch(dtype, [&](auto zero) { forward_typed<decltype(zero)>(call, y, after); });
  std::vector<Variable> results = record_many(
      "group_memory", {y.to(inputs.q.dtype()), after},
      {inputs.q, inputs.k, inputs.v, inputs.past_k, inputs.past_v, memory},
      [call, dtype](Gradients& gradients) {
        const auto zeros = [](const Tensor& x) {
          return x.defined() ? Tensor::zeros(x.shape(), x.dtype(), x.device()) : Tensor();
        };
        const BlockAttentionTensors d{zeros(call.in.q),      zeros(call.in.k),
                                      zeros(call.in.v),      zeros(call.in.past_k),
                                      zeros(call.in.past_v), {}};
        const Tensor dbefore = zeros(call.before);
        const Tensor dafter = gradients.has_output(1) ? gradients.output(1) : Tensor();
        const Tensor dy = gradients.output(0).to(dtype);
        dispatch(dtype,
                 [&](auto zero) { backward_typed<decltype(zero)>(call, dy, dafter, d, dbefore); });
        size_t input = 0;
        for (const Tensor* x : {&d.q, &d.k, &d.v, &d.past_k, &d.past_v, &dbefore}) {
          if (x->defined()) gradients.add(input, *x);
          ++input;
        }
      });
  return {results[0], results[1]};
}

}  // namespace linnet::cuda
