#include "autograd/embedding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/cuda/embedding.h"
#include "autograd/cuda/positions.h"
#include "core/cuda/backend.h"
#include "core/elementwise.h"
#include "core/threads.h"

namespace linnet {
namespace {

// Cosines and sines of position * frequency, `count` of a position: angle i of position p is
// p * base^(-2i / width).
template <typename C>
struct AngleTable {
  int64_t first = 0, positions = 0;  // consecutive ones
  int64_t count = 0, width = 0;
  double base = 0;
  std::vector<C> cosine, sine;

  bool is_of(const AngleTable& other) const {
    return first == other.first && positions == other.positions && count == other.count &&
           width == other.width && base == other.base;
  }

  // position(entry) is that of each of `entries` entries.
  template <typename Position>
  void fill(int64_t entries, const Position& position) {
    std::vector<double> frequency(static_cast<size_t>(count));
    for (size_t i = 0; i < frequency.size(); ++i) {
      frequency[i] = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(width));
    }
    cosine.resize(static_cast<size_t>(entries * count));
    sine.resize(cosine.size());
    parallel_for(entries, 16, [&](int64_t begin, int64_t end) {
      for (int64_t entry = begin; entry < end; ++entry) {
        for (int64_t i = 0; i < count; ++i) {
          const double angle =
              static_cast<double>(position(entry)) * frequency[static_cast<size_t>(i)];
          const auto at = static_cast<size_t>(entry * count + i);
          cosine[at] = static_cast<C>(std::cos(angle));
          sine[at] = static_cast<C>(std::sin(angle));
        }
      }
    });
  }
};

// The angles of rows. Positions repeat over the rows of a batch, and these functions dominate the
// cost: each position from the smallest to the largest is computed once, or each row where that
// range is wide.
template <typename C>
class Angles {
 public:
  Angles(const Tensor& positions, int64_t count, int64_t width, double base)
      : position_(positions.data<int32_t>()) {
    const int64_t rows = positions.elements();
    AngleTable<C> table;
    table.count = count;
    table.width = width;
    table.base = base;
    if (rows > 0) {
      const auto [smallest, largest] = std::minmax_element(position_, position_ + rows);
      table.first = *smallest;
      table.positions = static_cast<int64_t>(*largest) - *smallest + 1;
    }
    dense_ = table.positions <= rows;
    if (!dense_) {
      table.fill(rows, [&](int64_t row) { return position_[row]; });
      table_ = std::make_shared<const AngleTable<C>>(std::move(table));
      return;
    }
    // Kept: queries and keys of all layers ask for the same ones.
    static thread_local std::shared_ptr<const AngleTable<C>> last;
    if (last == nullptr || !last->is_of(table)) {
      table.fill(table.positions, [&](int64_t entry) { return table.first + entry; });
      auto filled = std::make_shared<const AngleTable<C>>(std::move(table));
      if (filled->cosine.size() > kMaxKept) {
        table_ = std::move(filled);
        return;
      }
      last = std::move(filled);
    }
    table_ = last;
  }
  // `count` values of the position of a row.
  const C* cosine(int64_t row) const { return table_->cosine.data() + offset(row); }
  const C* sine(int64_t row) const { return table_->sine.data() + offset(row); }

 private:
  static constexpr size_t kMaxKept = size_t{1} << 18;

  int64_t offset(int64_t row) const {
    return (dense_ ? position_[row] - table_->first : row) * table_->count;
  }
  const int32_t* position_;
  std::shared_ptr<const AngleTable<C>> table_;
  bool dense_ = true;
};

// Rotation by sign * angle of every pair.
Tensor rotate(const Tensor& x, const Tensor& positions, int64_t width, double theta, int sign) {
  const int64_t time = x.size(1);
  const int64_t heads = x.size(2);
  const int64_t channels = x.size(3);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::rotate(x, positions, width, theta, sign, y);
      return y;
    }
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const Angles<C> angles(positions, width / 2, width, theta);
    const T* from = x.data<T>();
    T* to = y.data<T>();
    parallel_for(x.size(0) * time, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const C* cosine = angles.cosine(row);
        const C* sine = angles.sine(row);
        for (int64_t h = 0; h < heads; ++h) {
          const T* in = from + (row * heads + h) * channels;
          T* out = to + (row * heads + h) * channels;
          for (int64_t i = 0; i < width / 2; ++i) {
            const C a = static_cast<C>(in[2 * i]);
            const C b = static_cast<C>(in[2 * i + 1]);
            const C s = static_cast<C>(sign) * sine[i];
            out[2 * i] = static_cast<T>(a * cosine[i] - b * s);
            out[2 * i + 1] = static_cast<T>(a * s + b * cosine[i]);
          }
          for (int64_t c = width; c < channels; ++c) out[c] = in[c];
        }
      }
    });
  });
  return y;
}

// to[id] += factor * from[token] for every token, in the order of the tokens.
template <typename T, typename G>
void scatter_rows(const int32_t* id, int64_t tokens, int64_t channels, double factor, const T* from,
                  G* to) {
  const G f = static_cast<G>(factor);
  // Threads share channels, so that every sum runs over the tokens in order.
  parallel_for(channels, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < tokens; ++i) {
      G* line = to + id[i] * channels;
      const T* in = from + i * channels;
      for (int64_t c = begin; c < end; ++c) line[c] += f * static_cast<G>(in[c]);
    }
  });
}

// factor * table[ids].
Tensor lookup(const Tensor& ids, const Tensor& table, double factor) {
  const int64_t rows = table.size(0);
  const int64_t channels = table.size(1);
  std::vector<int64_t> sizes = ids.shape().to_vector();
  sizes.push_back(channels);
  const Tensor y = Tensor::empty(Shape(sizes), table.dtype(), table.device());
  if constexpr (kCuda) {
    if (on_cuda(table)) {
      cuda::embedding(ids, table, factor, y);
      return y;
    }
  }
  const int32_t* id = ids.data<int32_t>();
  for (int64_t i = 0; i < ids.elements(); ++i) {
    require(id[i] >= 0 && id[i] < rows, "embedding: id ", id[i], " at position ", i,
            " is outside the table of ", rows, " rows");
  }
  dispatch_floating(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* from = table.data<T>();
    T* to = y.data<T>();
    const C f = static_cast<C>(factor);
    parallel_for(ids.elements(), 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* line = from + id[i] * channels;
        for (int64_t c = 0; c < channels; ++c) {
          to[i * channels + c] = static_cast<T>(f * static_cast<C>(line[c]));
        }
      }
    });
  });
  return y;
}

// Adds the gradient of the table to a buffer of f32 or f64.
void scatter(const Tensor& ids, const Tensor& dy, double factor, const Tensor& to) {
  dispatch_floating(dy.dtype(), [&](auto dy_zero) {
    using T = decltype(dy_zero);
    dispatch_floating(to.dtype(), [&](auto zero) {
      using G = decltype(zero);
      if constexpr (!std::is_same_v<G, bf16>) {
        scatter_rows(ids.data<int32_t>(), ids.elements(), dy.size(-1), factor, dy.data<T>(),
                     to.data<G>());
      }
    });
  });
}

void lookup_backward(const Tensor& ids, const Tensor& dy, double factor,
                     const GradientTarget& target) {
  if (target.mode == GradientWrite::ignore) return;
  if constexpr (kCuda) {
    if (on_cuda(dy)) {
      return cuda::embedding_backward(ids, dy, factor, target.buffer,
                                      target.mode == GradientWrite::accumulate);
    }
  }
  if (target.mode == GradientWrite::overwrite) target.buffer.set_zero();
  if (target.buffer.dtype() != DType::bf16) {
    scatter(ids, dy, factor, target.buffer);
  } else {  // sums in bf16 would stop growing at 256 equal terms
    const Tensor sums = Tensor::zeros(target.buffer.shape(), DType::f32, dy.device());
    scatter(ids, dy, factor, sums);
    add_into(target.buffer, sums);
  }
}

// x + the encoding of positions.
Tensor with_sinusoidal(const Tensor& x, const Tensor& positions) {
  const int64_t channels = x.size(2);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::add_sinusoidal(x, positions, y);
      return y;
    }
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const int64_t pairs = (channels + 1) / 2;
    const Angles<C> angles(positions, pairs, channels, 10000.0);
    const T* from = x.data<T>();
    T* to = y.data<T>();
    parallel_for(positions.elements(), 16, [&](int64_t begin, int64_t end) {
      std::vector<C> encoding(static_cast<size_t>(2 * pairs));
      for (int64_t row = begin; row < end; ++row) {
        const C* cosine = angles.cosine(row);
        const C* sine = angles.sine(row);
        for (int64_t i = 0; i < pairs; ++i) {
          encoding[static_cast<size_t>(2 * i)] = sine[i];
          encoding[static_cast<size_t>(2 * i + 1)] = cosine[i];
        }
        const C* plus = encoding.data();
        const T* in = from + row * channels;
        T* out = to + row * channels;
        for (int64_t c = 0; c < channels; ++c) {
          out[c] = static_cast<T>(static_cast<C>(in[c]) + plus[c]);
        }
      }
    });
  });
  return y;
}

}  // namespace

Variable embedding(const Tensor& ids, const Variable& table, double factor) {
  require(ids.dtype() == DType::i32 && table.shape().rank() == 2,
          "embedding: ids must be i32, got ", name_of(ids.dtype()), "; table ", table.shape());
  return record("embedding", lookup(ids, table.value(), factor), {table},
                [ids, factor](Gradients& gradients) {
                  lookup_backward(ids, gradients.output(), factor, gradients.target(0));
                });
}

Tensor counted_positions(int64_t rows, int64_t time, int64_t offset, Device device) {
  require(offset >= 0 && offset + time <= std::numeric_limits<int32_t>::max(),
          "positions: ", offset, " + ", time,
          " is more than positions of 32 bits can count; make the context shorter");
  const Tensor positions = Tensor::empty({rows, time}, DType::i32, device);
  if constexpr (kCuda) {
    if (on_cuda(positions)) {
      cuda::count_positions(positions, offset);
      return positions;
    }
  }
  auto* to = positions.data<int32_t>();
  for (int64_t i = 0; i < rows * time; ++i) to[i] = static_cast<int32_t>(offset + i % time);
  return positions;
}

Tensor shifted_right(const Tensor& ids, int32_t first) {
  require(ids.dtype() == DType::i32 && ids.shape().rank() == 2, "shifted_right: ids must be i32 ",
          "[B, T], got ", name_of(ids.dtype()), " ", ids.shape());
  const Tensor shifted = Tensor::empty(ids.shape(), DType::i32, ids.device());
  if constexpr (kCuda) {
    if (on_cuda(ids)) {
      cuda::shift_right(ids, first, shifted);
      return shifted;
    }
  }
  const auto* from = ids.data<int32_t>();
  auto* to = shifted.data<int32_t>();
  for (int64_t i = 0; i < ids.elements(); ++i) to[i] = i % ids.size(1) == 0 ? first : from[i - 1];
  return shifted;
}

Variable add_sinusoidal(const Variable& x, const Tensor& positions) {
  require(x.shape().rank() == 3 && positions.elements() == x.size(0) * x.size(1),
          "add_sinusoidal: x ", x.shape(), ", positions ", positions.shape());
  const Tensor y = with_sinusoidal(x.value(), positions);
  return record("add_sinusoidal", y, {x},
                [](Gradients& gradients) { gradients.add(0, gradients.output()); });
}

Variable rotary(const Variable& x, const Tensor& positions, int64_t width, double theta) {
  require(x.shape().rank() == 4 && positions.elements() == x.size(0) * x.size(1) && width >= 0 &&
              width % 2 == 0 && width <= x.size(3) && theta > 0,
          "rotary: x ", x.shape(), ", positions ", positions.shape(), ", width ", width,
          " (even, at most that of x), theta ", theta, " (positive)");
  return record("rotary", rotate(x.value(), positions, width, theta, 1), {x},
                [positions, width, theta](Gradients& gradients) {
                  gradients.add(0, rotate(gradients.output(), positions, width, theta, -1));
                });
}

}  // namespace linnet
