// Group memory on the CPU: a scan over groups, forward for y and dq, in reverse for the rest.
#include "attention/primitives/group_memory_cpu.h"

#include <algorithm>

#include "attention/primitives/block_attention_tiles.h"
#include "attention/primitives/chunked.h"
#include "core/error.h"

namespace linnet {
namespace {

using namespace block_attention_detail;
using chunked::kChunk;
using chunked::padded;
using chunked::Scratch;

// Queries r and keys u of one group inside a piece.
struct Group {
  KeyRange queries, keys;
  bool complete;  // whether the piece holds its last position
};

// The scan of one (piece, key head); all matrices are padded to whole vectors.
template <typename T>
class Walk {
 public:
  Walk(const BlockAttentionInputs<T>& in, const GroupMemoryOptions& options, const Piece& piece,
       int64_t key_head)
      : in_(in),
        piece_(piece),
        head_(key_head),
        group_(options.group),
        scale_(static_cast<T>(options.scale)),
        kp_(padded(in.q.K)),
        vp_(padded(in.v.K)),
        state_(scratch_.take(kp_ * vp_)),
        left_(scratch_.take(kChunk * kp_)),
        right_(scratch_.take(kChunk * vp_)),
        out_(scratch_.take(kChunk * std::max(kp_, vp_))) {}

  // Groups that hold positions of the piece.
  int64_t groups() const {
    const int64_t end = piece_.start + piece_.queries;
    return piece_.queries == 0 ? 0 : (end - 1) / group_ - piece_.start / group_ + 1;
  }
  Group group(int64_t number) const {
    const int64_t begin = (piece_.start / group_ + number) * group_ - piece_.start;
    BlockAttentionOptions blocks;
    blocks.pattern = BlockPattern::blocks;
    blocks.block = group_;
    const int64_t first = std::max<int64_t>(begin, 0);
    return {{first, std::min(begin + group_, piece_.queries)},
            visible_keys(piece_, blocks, first),
            begin + group_ <= piece_.queries};
  }

  // The state is [K,V], from and to [B,G,K,V]; null: zeros.
  void load_state(const T* from) {
    std::fill_n(state_, kp_ * vp_, T{0});
    for (int64_t c = 0; from != nullptr && c < in_.k.K; ++c) {
      std::copy_n(from + place() + c * in_.v.K, in_.v.K, state_ + c * vp_);
    }
  }
  void store_state(T* to) const {
    for (int64_t c = 0; to != nullptr && c < in_.k.K; ++c) {
      std::copy_n(state_ + c * vp_, in_.v.K, to + place() + c * in_.v.K);
    }
  }

  // y = scale q S for the queries of a group.
  void read(const Group& group, const SequenceView<T>& y) {
    for_queries(group, [&](int64_t t, int64_t n, int64_t h) {
      chunked::load_rows(in_.q, in_.query_mask, piece_.row, t, n, h, left_, kp_);
      tile_gemm<T>(n, vp_, in_.q.K, scale_, {left_, kp_}, {state_, vp_}, Write::overwrite, out_,
                   vp_);
      store_rows(y, t, n, h, vp_);
    });
  }
  // dq = scale dy S^T.
  void read_gradients(const Group& group, const SequenceView<const T>& dy,
                      const SequenceView<T>& dq) {
    for_queries(group, [&](int64_t t, int64_t n, int64_t h) {
      chunked::load_rows(dy, in_.query_mask, piece_.row, t, n, h, right_, vp_);
      tile_gemm<T>(n, kp_, in_.v.K, scale_, {right_, vp_}, {state_, vp_, true}, Write::overwrite,
                   out_, kp_);
      store_rows(dq, t, n, h, kp_);
    });
  }
  // S += k^T v for the keys of a group.
  void write(const Group& group) {
    for_keys(group, [&](bool past, int64_t t, int64_t n) {
      load_keys(past, t, n);
      tile_gemm<T>(in_.k.K, vp_, n, T{1}, {left_, kp_, true}, {right_, vp_}, Write::accumulate,
                   state_, vp_);
    });
  }
  // Where S holds dL/dS of what comes after: dk = v S^T, dv = k S.
  void write_gradients(const Group& group, const BlockAttentionGradients<T>& d) {
    for_keys(group, [&](bool past, int64_t t, int64_t n) {
      load_keys(past, t, n);
      if (const SequenceView<T>& dk = past ? d.dpast_k : d.dk) {
        tile_gemm<T>(n, kp_, in_.v.K, T{1}, {right_, vp_}, {state_, vp_, true}, Write::overwrite,
                     out_, kp_);
        store_rows(dk, t, n, head_, kp_);
      }
      if (const SequenceView<T>& dv = past ? d.dpast_v : d.dv) {
        tile_gemm<T>(n, vp_, in_.k.K, T{1}, {left_, kp_}, {state_, vp_}, Write::overwrite, out_,
                     vp_);
        store_rows(dv, t, n, head_, vp_);
      }
    });
  }
  // S += scale q^T dy for the queries of a group.
  void add_reads(const Group& group, const SequenceView<const T>& dy) {
    for_queries(group, [&](int64_t t, int64_t n, int64_t h) {
      chunked::load_rows(in_.q, in_.query_mask, piece_.row, t, n, h, left_, kp_);
      chunked::load_rows(dy, in_.query_mask, piece_.row, t, n, h, right_, vp_);
      tile_gemm<T>(in_.q.K, vp_, n, scale_, {left_, kp_, true}, {right_, vp_}, Write::accumulate,
                   state_, vp_);
    });
  }

 private:
  int64_t place() const { return (piece_.row * in_.k.H + head_) * in_.k.K * in_.v.K; }
  template <typename Body>
  void for_queries(const Group& group, const Body& body) const {
    const int64_t heads = in_.q.H / in_.k.H;
    for (int64_t h = head_ * heads; h < (head_ + 1) * heads; ++h) {
      for (int64_t r = group.queries.begin; r < group.queries.end; r += kChunk) {
        body(piece_.query_begin + r, std::min(kChunk, group.queries.end - r), h);
      }
    }
  }
  template <typename Body>
  void for_keys(const Group& group, const Body& body) const {
    for (int64_t u = group.keys.begin; u < group.keys.end;) {
      const bool past = u < piece_.past;
      const int64_t end = past ? std::min(piece_.past, group.keys.end) : group.keys.end;
      const int64_t n = std::min(kChunk, end - u);
      body(past, past ? u : piece_.key_begin + u - piece_.past, n);
      u += n;
    }
  }
  void load_keys(bool past, int64_t t, int64_t n) {
    const uint8_t* mask = past ? in_.past_mask : in_.key_mask;
    chunked::load_rows(past ? in_.past_k : in_.k, mask, piece_.row, t, n, head_, left_, kp_);
    chunked::load_rows(past ? in_.past_v : in_.v, mask, piece_.row, t, n, head_, right_, vp_);
  }
  void store_rows(const SequenceView<T>& to, int64_t t, int64_t n, int64_t h,
                  int64_t stride) const {
    for (int64_t i = 0; i < n; ++i) {
      std::copy_n(out_ + i * stride, to.K, to.at(piece_.row, t + i, h));
    }
  }

  const BlockAttentionInputs<T>& in_;
  const Piece& piece_;
  int64_t head_, group_;
  T scale_;
  int64_t kp_, vp_;
  Scratch<T> scratch_;
  T *state_, *left_, *right_, *out_;
};

template <typename T>
void check(const BlockAttentionInputs<T>& in, const GroupMemoryOptions& options) {
  require(options.group >= 1, "group memory: groups need a size of at least 1, got ",
          options.group);
  require(!in.spans.empty(), "group memory: it is defined for self-attention only");
  check_block_attention(in, BlockAttentionOptions{});
}

// Calls body(walk, span) for every (span, key head); `products` of K x V numbers a token.
template <typename T, typename Body>
void for_walks(const BlockAttentionInputs<T>& in, const GroupMemoryOptions& options,
               double products, const Body& body) {
  const std::vector<Piece> pieces = make_pieces(in);
  const double work = products * static_cast<double>(in.q.B * in.q.T * in.q.H * in.q.K * in.v.K);
  chunked::run_tasks(static_cast<int64_t>(pieces.size()) * in.k.H, work, [&](int64_t task) {
    const auto piece = static_cast<size_t>(task / in.k.H);
    Walk<T> walk(in, options, pieces[piece], task % in.k.H);
    body(walk, in.spans[piece]);
  });
}

template <typename T>
void clear(const SequenceView<T>& view) {
  if (view) std::fill_n(view.data, view.B * view.T * view.H * view.K, T{0});
}

}  // namespace

template <typename T>
void group_memory_forward(const BlockAttentionInputs<T>& in, const GroupMemoryOptions& options,
                          const T* memory_in, SequenceView<T> y, T* memory_out) {
  check(in, options);
  for_walks(in, options, 2, [&](Walk<T>& walk, const Span& span) {
    walk.load_state(span.carries_in ? memory_in : nullptr);
    for (int64_t i = 0; i < walk.groups(); ++i) {
      const Group group = walk.group(i);
      walk.read(group, y);
      if (group.complete) walk.write(group);
    }
    if (span.carries_out) walk.store_state(memory_out);
  });
}

template <typename T>
void group_memory_backward(const BlockAttentionInputs<T>& in, const GroupMemoryOptions& options,
                           const T* memory_in, SequenceView<const T> dy, const T* dmemory_out,
                           const BlockAttentionGradients<T>& gradients, T* dmemory_in) {
  check(in, options);
  // Keys of groups that are still open, or that are over, have none.
  for (const SequenceView<T>* d :
       {&gradients.dk, &gradients.dv, &gradients.dpast_k, &gradients.dpast_v}) {
    clear(*d);
  }
  for_walks(in, options, 5, [&](Walk<T>& walk, const Span& span) {
    walk.load_state(span.carries_in ? memory_in : nullptr);
    for (int64_t i = 0; i < walk.groups(); ++i) {
      const Group group = walk.group(i);
      walk.read_gradients(group, dy, gradients.dq);
      if (group.complete) walk.write(group);
    }
    walk.load_state(span.carries_out ? dmemory_out : nullptr);
    for (int64_t i = walk.groups() - 1; i >= 0; --i) {
      const Group group = walk.group(i);
      if (group.complete) walk.write_gradients(group, gradients);
      walk.add_reads(group, dy);
    }
    if (span.carries_in) walk.store_state(dmemory_in);
  });
}

void group_memory_reference(const BlockAttentionInputs<double>& in,
                            const GroupMemoryOptions& options, const double* memory_in,
                            SequenceView<double> y, double* memory_out) {
  check(in, options);
  const std::vector<Piece> pieces = make_pieces(in);
  const int64_t K = in.q.K, V = in.v.K;
  for (size_t number = 0; number < pieces.size(); ++number) {
    const Piece& piece = pieces[number];
    const Span& span = in.spans[number];
    const int64_t open = (piece.start + piece.queries) / options.group;
    for (int64_t h = 0; h < in.q.H; ++h) {
      const int64_t g = h / (in.q.H / in.k.H), place = (piece.row * in.k.H + g) * K * V;
      // k_a v_c summed over the groups from that of the piece's first position to before `until`.
      const auto memory = [&](int64_t until, int64_t a, int64_t c) {
        double total = span.carries_in && memory_in != nullptr ? memory_in[place + a * V + c] : 0.0;
        for (int64_t u = 0; u < piece.all_keys(); ++u) {
          const int64_t position = piece.start - piece.past + u;
          const bool past = u < piece.past;
          const int64_t t = past ? u : piece.key_begin + u - piece.past;
          const auto& keys = past ? in.past_k : in.k;
          const auto& values = past ? in.past_v : in.v;
          if (position < 0 || position / options.group < piece.start / options.group ||
              position / options.group >= until ||
              !is_valid(past ? in.past_mask : in.key_mask, piece.row, t, keys.T)) {
            continue;
          }
          total += keys.at(piece.row, t, g)[a] * values.at(piece.row, t, g)[c];
        }
        return total;
      };
      for (int64_t r = 0; r < piece.queries; ++r) {
        const int64_t t = piece.query_begin + r;
        for (int64_t c = 0; c < V; ++c) {
          double total = 0;
          for (int64_t a = 0; a < K && is_valid(in.query_mask, piece.row, t, in.q.T); ++a) {
            total += in.q.at(piece.row, t, h)[a] * memory((piece.start + r) / options.group, a, c);
          }
          y.at(piece.row, t, h)[c] = options.scale * total;
        }
      }
      for (int64_t i = 0; span.carries_out && i < K * V; ++i) {
        memory_out[place + i] = memory(open, i / V, i % V);
      }
    }
  }
}

#define LINNET_INSTANTIATE(T)                                                                      \
  template void group_memory_forward<T>(const BlockAttentionInputs<T>&, const GroupMemoryOptions&, \
                                        const T*, SequenceView<T>, T*);                            \
  template void group_memory_backward<T>(                                                          \
      const BlockAttentionInputs<T>&, const GroupMemoryOptions&, const T*, SequenceView<const T>,  \
      const T*, const BlockAttentionGradients<T>&, T*)
LINNET_INSTANTIATE(float);
LINNET_INSTANTIATE(double);
#undef LINNET_INSTANTIATE

}  // namespace linnet
