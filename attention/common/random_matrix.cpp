#include "attention/common/random_matrix.h"

#include <cmath>
#include <mutex>
#include <optional>

#include "attention/common/mixer_support.h"
#include "attention/common/orthonormal.h"
#include "core/cuda/backend.h"
#include "core/cuda/graph.h"

namespace linnet {

std::vector<double> gaussian_rows(int64_t rows, int64_t width, const RandomKey& key) {
  std::vector<double> values(static_cast<size_t>(rows * width));
  for (size_t i = 0; i < values.size(); ++i) values[i] = key.normal(i);
  return values;
}

std::vector<double> orthogonal_rows(int64_t rows, int64_t width, RowLength length,
                                    const RandomKey& key) {
  std::vector<double> values;
  const RandomKey lengths = key.at("lengths");
  for (int64_t first = 0; first < rows; first += width) {
    const std::vector<double> block =
        orthonormal_rows(width, width, key.at(std::to_string(first / width)));
    for (int64_t r = first; r < std::min(rows, first + width); ++r) {
      double square = 0;
      for (int64_t c = 0; c < width; ++c) {
        square += std::pow(lengths.normal(static_cast<uint64_t>(r * width + c)), 2);
      }
      const double scale =
          std::sqrt(length == RowLength::constant ? static_cast<double>(width) : square);
      for (int64_t c = 0; c < width; ++c) {
        values.push_back(scale * block[static_cast<size_t>((r - first) * width + c)]);
      }
    }
  }
  return values;
}

struct RandomMatrix::Latest {
  std::mutex mutex;
  RandomKey key;
  std::vector<double> values;
  // The device tensor that CUDA graphs read, and the key of its contents; allocated before the
  // first capture, because tensors of a capture live in the graph's memory.
  Tensor in_graphs;
  std::optional<RandomKey> in_graphs_key;
};

namespace {

bool same_draw(const RandomKey& a, const RandomKey& b) {
  return a.seed == b.seed && a.step == b.step && a.site == b.site;
}

}  // namespace

RandomMatrix::RandomMatrix(const ParameterScope& scope, const std::string& name, const Shape& shape,
                           const Draw& stored, Draw redrawn, int64_t redraw_steps)
    : name_(name),
      stored_(scope.buffer(name, shape,
                           [stored](const Tensor& values, const RandomKey& key) {
                             values.copy_from(Tensor::from(stored(key), values.shape()));
                           })),
      redrawn_(std::move(redrawn)),
      redraw_steps_(redraw_steps),
      latest_(std::make_shared<Latest>()) {}

Tensor RandomMatrix::values_of(uint64_t epoch, const RandomKey& key) const {
  if (epoch == 0) return stored_.value();
  RandomKey fresh = key.at(name_);
  fresh.step = epoch;
  const std::scoped_lock lock(latest_->mutex);
  if (latest_->values.empty() || !same_draw(latest_->key, fresh)) {
    latest_->values = redrawn_(fresh);
    latest_->key = fresh;
  }
  return Tensor::from(latest_->values, stored_.shape());
}

Tensor RandomMatrix::in_graphs(const RandomKey& key, DType dtype) const {
  const Tensor& fixed = latest_->in_graphs;
  if constexpr (kCuda) {
    if (!fixed.defined() || fixed.dtype() != dtype) {
      cuda::refuse_capture("a random matrix that no pass has drawn before");
    }
    cuda::before_each_replay([matrix = *this, key](uint64_t step) { matrix.refresh(key, step); });
  }
  return fixed;
}

void RandomMatrix::refresh(RandomKey key, uint64_t step) const {
  key.step = step / static_cast<uint64_t>(redraw_steps_);
  if (latest_->in_graphs_key && same_draw(*latest_->in_graphs_key, key)) return;
  latest_->in_graphs.copy_from(values_of(key.step, key));
  latest_->in_graphs_key = key;
}

Variable RandomMatrix::at(const MixerContext& context, const RandomKey& key, DType dtype) const {
  if (!context.training || redraw_steps_ == 0) return as_dtype(stored_, dtype);
  const Tensor& stored = stored_.value();
  if constexpr (kCuda) {
    if (on_cuda(stored)) {
      if (cuda::capturing()) return Variable(in_graphs(key, dtype));
      Tensor& fixed = latest_->in_graphs;
      if (!fixed.defined()) fixed = Tensor::empty(stored.shape(), dtype, stored.device());
    }
  }
  const uint64_t epoch = key.step / static_cast<uint64_t>(redraw_steps_);
  if (epoch == 0) return as_dtype(stored_, dtype);
  const Tensor values = linnet::drawn(context, name_ + "_redrawn", stored.shape(),
                                      [&] { return values_of(epoch, key); });
  return Variable(values.to(dtype).to(stored.device()));
}

}  // namespace linnet
