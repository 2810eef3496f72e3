#include "attention/random_matrix.h"

#include <cmath>
#include <mutex>

#include "attention/lavo/orthonormal.h"
#include "attention/mixer_support.h"

namespace linnet {

std::vector<double> gaussian_rows(int64_t rows, int64_t width, const RandomKey& key) {
  std::vector<double> numbers(static_cast<size_t>(rows * width));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = key.normal(i);
  return numbers;
}

std::vector<double> orthogonal_rows(int64_t rows, int64_t width, RowLength length,
                                    const RandomKey& key) {
  std::vector<double> numbers;
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
        numbers.push_back(scale * block[static_cast<size_t>((r - first) * width + c)]);
      }
    }
  }
  return numbers;
}

struct RandomMatrix::Latest {
  std::mutex mutex;
  RandomKey key;
  std::vector<double> values;
};

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

Variable RandomMatrix::at(const MixerContext& context, const RandomKey& key, DType dtype) const {
  const uint64_t epoch =
      redraw_steps_ > 0 ? key.step / static_cast<uint64_t>(redraw_steps_) : uint64_t{0};
  if (!context.training || epoch == 0) return as_dtype(stored_, dtype);
  RandomKey fresh = key.at(name_);
  fresh.step = epoch;
  const Tensor& stored = stored_.value();
  const Tensor values = linnet::drawn(context, name_ + "_redrawn", stored.shape(), [&] {
    const std::scoped_lock lock(latest_->mutex);
    const RandomKey& last = latest_->key;
    const bool same = !latest_->values.empty() && last.seed == fresh.seed &&
                      last.step == fresh.step && last.site == fresh.site;
    if (!same) {
      latest_->values = redrawn_(fresh);
      latest_->key = fresh;
    }
    return Tensor::from(latest_->values, stored.shape());
  });
  return Variable(values.to(dtype).to(stored.device()));
}

}  // namespace linnet
