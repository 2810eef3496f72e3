#include "autograd/layout.h"

#include <cstring>
#include <numeric>

#include "autograd/cuda/layout.h"
#include "autograd/views.h"
#include "core/cuda/backend.h"
#include "core/elementwise.h"

namespace linnet {
namespace {

// Between the elements that a view shows, from element `offset` of a tensor on, and a contiguous
// tensor: whole = the view's elements, or the view's elements = whole.
void read_view(const Tensor& from, int64_t offset, const Views<1>& view, const Tensor& whole) {
  if constexpr (kCuda) {
    if (on_cuda(from)) return cuda::read_view(from, offset, view, whole);
  }
  dispatch_size(from, [&](auto zero) {
    using T = decltype(zero);
    const T* source = static_cast<const T*>(from.raw()) + offset;
    T* to = static_cast<T*>(whole.raw());
    for_runs(view, [&](int64_t first, int64_t count, const std::array<int64_t, 1>& at) {
      const int64_t step = view.step(0);
      if (step == 1) {
        std::copy_n(source + at[0], count, to + first);
      } else {
        for (int64_t i = 0; i < count; ++i) to[first + i] = source[at[0] + i * step];
      }
    });
  });
}

void write_view(const Tensor& whole, const Tensor& to, int64_t offset, const Views<1>& view) {
  if constexpr (kCuda) {
    if (on_cuda(to)) return cuda::write_view(whole, to, offset, view);
  }
  dispatch_size(to, [&](auto zero) {
    using T = decltype(zero);
    const T* from = static_cast<const T*>(whole.raw());
    T* target = static_cast<T*>(to.raw()) + offset;
    for_runs(view, [&](int64_t first, int64_t count, const std::array<int64_t, 1>& at) {
      const int64_t step = view.step(0);
      if (step == 1) {
        std::copy_n(from + first, count, target + at[0]);
      } else {
        for (int64_t i = 0; i < count; ++i) target[at[0] + i * step] = from[first + i];
      }
    });
  });
}

Tensor permuted(const Tensor& x, const std::vector<int64_t>& order) {
  const std::vector<int64_t> strides = strides_of(x.shape());
  std::vector<int64_t> sizes, moved;
  for (const int64_t d : order) {
    sizes.push_back(x.size(d));
    moved.push_back(strides[static_cast<size_t>(d)]);
  }
  const Tensor y = Tensor::empty(Shape(sizes), x.dtype(), x.device());
  read_view(x, 0, make_views<1>(sizes, {moved}), y);
  return y;
}

// Part [begin, begin + size of `part`) of a dimension of `whole`: where it starts, and its view.
std::pair<int64_t, Views<1>> part_of(const Shape& whole, const Shape& part, int64_t dimension,
                                     int64_t begin) {
  const std::vector<int64_t> strides = strides_of(whole);
  return {begin * strides[static_cast<size_t>(dimension)], make_views<1>(part.sizes(), {strides})};
}

// Sums that one thread makes at once.
constexpr int64_t kTogether = 64;

// Adds terms [begin, end) of `summed` to `count` neighbouring sums, at most kTogether, of which the
// first is that of element `first` of `kept`.
template <typename T>
void add_terms(const T* from, const Views<1>& kept, const Views<1>& summed, int64_t first,
               int64_t count, int64_t begin, int64_t end, double* sums) {
  int64_t places[kTogether];
  for (int64_t i = 0; i < count; ++i) places[i] = kept.offset(0, first + i);
  const int64_t run = summed.run(), step = summed.step(0);
  for (int64_t j = begin; j < end;) {
    const int64_t at = summed.offset(0, j), length = std::min(end - j, run - j % run);
    if (step == 1) {
      for (int64_t i = 0; i < count; ++i) {
        const T* terms = from + places[i] + at;
        for (int64_t l = 0; l < length; ++l) sums[i] += static_cast<double>(terms[l]);
      }
    } else {
      for (int64_t l = 0; l < length; ++l) {
        const T* terms = from + at + l * step;
        for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(terms[places[i]]);
      }
    }
    j += length;
  }
}

void put_slice(const Tensor& part, const Tensor& whole, int64_t dimension, int64_t begin) {
  const auto [offset, view] = part_of(whole.shape(), part.shape(), dimension, begin);
  write_view(part, whole, offset, view);
}

}  // namespace

Variable permute(const Variable& x, const std::vector<int64_t>& order) {
  std::vector<int64_t> places, back(order.size(), -1);
  for (const int64_t d : order) {
    places.push_back(dimension_of(x.shape(), d, "permute"));
    back[static_cast<size_t>(places.back()) % order.size()] = std::ssize(places) - 1;
  }
  require(order.size() == x.shape().rank() && std::ranges::find(back, -1) == back.end(),
          "permute: expected each dimension of ", x.shape(), " once");
  return record("permute", permuted(x.value(), places), {x}, [back](Gradients& gradients) {
    gradients.add(0, permuted(gradients.output(), back));
  });
}

Variable transpose(const Variable& x, int64_t a, int64_t b) {
  std::vector<int64_t> order(x.shape().rank());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[static_cast<size_t>(dimension_of(x.shape(), a, "transpose"))],
            order[static_cast<size_t>(dimension_of(x.shape(), b, "transpose"))]);
  return permute(x, order);
}

Tensor slice(const Tensor& x, int64_t dimension, int64_t begin, int64_t end) {
  const int64_t along = dimension_of(x.shape(), dimension, "slice");
  require(0 <= begin && begin <= end && end <= x.size(along), "slice: elements ", begin, " to ",
          end, " of dimension ", dimension, " of ", x.shape());
  if (begin == 0 && end == x.size(along)) return x;
  const Tensor y = Tensor::empty(x.shape().with(along, end - begin), x.dtype(), x.device());
  const auto [offset, view] = part_of(x.shape(), y.shape(), along, begin);
  read_view(x, offset, view, y);
  return y;
}

Variable slice(const Variable& x, int64_t dimension, int64_t begin, int64_t end) {
  const Tensor y = slice(x.value(), dimension, begin, end);
  if (y.shape() == x.shape()) return x;
  const int64_t along = dimension_of(x.shape(), dimension, "slice");
  return record("slice", y, {x}, [along, begin, end](Gradients& gradients) {
    const GradientTarget to = gradients.target(0);
    if (to.mode == GradientWrite::overwrite) {
      to.buffer.set_zero();
      put_slice(gradients.output().to(to.buffer.dtype()), to.buffer, along, begin);
    } else if (to.mode == GradientWrite::accumulate) {
      // Of many slices of a tensor each touches its own part only.
      const Tensor part = slice(to.buffer, along, begin, end);
      add_into(part, gradients.output());
      put_slice(part, to.buffer, along, begin);
    }
  });
}

Tensor concatenate(const std::vector<Tensor>& parts, int64_t dimension) {
  require(!parts.empty(), "concatenate: expected at least one part");
  const Tensor& first = parts.front();
  const int64_t along = dimension_of(first.shape(), dimension, "concatenate");
  if (parts.size() == 1) return first;
  std::vector<int64_t> sizes = first.shape().to_vector();
  int64_t total = 0;
  for (const Tensor& part : parts) {
    sizes[static_cast<size_t>(along)] = part.shape().rank() == sizes.size() ? part.size(along) : -1;
    require(std::ranges::equal(part.shape().sizes(), sizes) && part.dtype() == first.dtype() &&
                part.device() == first.device(),
            "concatenate: ", part.shape(), " ", name_of(part.dtype()), " beside ", first.shape(),
            " ", name_of(first.dtype()), " along dimension ", dimension);
    total += part.size(along);
  }
  sizes[static_cast<size_t>(along)] = total;
  const Tensor y = Tensor::empty(Shape(sizes), first.dtype(), first.device());
  int64_t begin = 0;
  for (const Tensor& part : parts) {
    put_slice(part, y, along, begin);
    begin += part.size(along);
  }
  return y;
}

Variable concatenate(const std::vector<Variable>& parts, int64_t dimension) {
  if (parts.size() == 1) return parts.front();
  std::vector<Tensor> values;
  for (const Variable& part : parts) values.push_back(part.value());
  const Tensor y = concatenate(values, dimension);
  const int64_t along = dimension_of(y.shape(), dimension, "concatenate");
  std::vector<int64_t> begins{0};
  for (const Tensor& value : values) begins.push_back(begins.back() + value.size(along));
  return record("concatenate", y, parts, [begins, along](Gradients& gradients) {
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      if (!gradients.wanted(i)) continue;
      gradients.add(i, slice(gradients.output(), along, begins[i], begins[i + 1]));
    }
  });
}

Tensor expanded(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const std::vector<int64_t> strides = strides_in(x.shape(), shape);
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  read_view(x, 0, make_views<1>(shape.sizes(), {strides}), y);
  return y;
}

Variable expand(const Variable& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  return record("expand", expanded(x.value(), shape), {x},
                [before = x.shape()](Gradients& gradients) {
                  gradients.add(0, sum_to(gradients.output(), before));
                });
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const std::vector<int64_t> strides = strides_of(x.shape());
  const std::vector<int64_t> places = strides_in(shape, x.shape());
  // Dimensions that the result has, and those that are summed.
  std::vector<int64_t> kept_sizes, summed_sizes, kept_strides, summed_strides;
  for (size_t d = 0; d < strides.size(); ++d) {
    const int64_t size = x.shape().sizes()[d];
    const bool kept = places[d] != 0 || size == 1;
    (kept ? kept_sizes : summed_sizes).push_back(size);
    (kept ? kept_strides : summed_strides).push_back(strides[d]);
  }
  const Views<1> kept = make_views<1>(kept_sizes, {kept_strides});
  const Views<1> summed = make_views<1>(summed_sizes, {summed_strides});
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::sum_view(x, kept, summed, y);
      return y;
    }
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.data<T>();
    T* to = y.data<T>();
    // Neighbours are summed together, so that each cache line is read once. Few sums of many terms
    // are made in parts, whose number depends on the shapes alone, so that threads share them.
    constexpr int64_t kFewBlocks = 32, kTermsOfPart = 1024;
    const int64_t count = summed.elements(), sums = y.elements();
    const int64_t blocks = (sums + kTogether - 1) / kTogether;
    const int64_t parts =
        blocks < kFewBlocks ? std::clamp<int64_t>(count / kTermsOfPart, 1, kFewBlocks) : 1;
    std::vector<double> of_parts(static_cast<size_t>(parts > 1 ? parts * sums : 0));
    const auto put = [&](int64_t i, double sum) {
      to[i] = static_cast<T>(static_cast<Compute<T>>(sum));
    };
    const int64_t terms = kTogether * std::max<int64_t>(1, count / parts);
    parallel_for(blocks * parts, std::max<int64_t>(1, 16384 / terms),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t item = begin; item < end; ++item) {
                     const int64_t part = item / blocks, first = item % blocks * kTogether;
                     const int64_t n = std::min(kTogether, sums - first);
                     double totals[kTogether] = {};
                     add_terms(from, kept, summed, first, n, count * part / parts,
                               count * (part + 1) / parts, totals);
                     for (int64_t i = 0; i < n && parts == 1; ++i) put(first + i, totals[i]);
                     if (parts > 1) std::copy_n(totals, n, of_parts.data() + part * sums + first);
                   }
                 });
    for (int64_t i = 0; i < sums && parts > 1; ++i) {
      double sum = 0;
      for (int64_t part = 0; part < parts; ++part) {
        sum += of_parts[static_cast<size_t>(part * sums + i)];
      }
      put(i, sum);
    }
  });
  return y;
}

}  // namespace linnet
