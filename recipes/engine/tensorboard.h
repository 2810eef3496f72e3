// TensorBoard event files with scalar curves and hyperparameters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/files.h"

namespace linnet {

using HyperparameterValue = std::variant<double, bool, std::string>;

// Writes one event file into a folder. Format: TFRecord (length, masked CRC-32C of the length,
// data, masked CRC-32C of the data; little-endian) around protocol-buffer messages `Event` of
// tensorflow/core/util/event.proto; the first one says "brain.Event:2".
class TensorBoardWriter {
 public:
  // Makes the folder and a new file in it. With `resumed_at` >= 0 TensorBoard is told to forget
  // what earlier files say about later steps. Throws Error when the file cannot be written.
  explicit TensorBoardWriter(const std::string& folder, int64_t resumed_at = -1);
  // One point of each named curve, as float; non-finite values are written as they are.
  void write_scalars(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  // What the HParams page shows beside the curves of this run: an event with the tag
  // "_hparams_/session_start_info" whose metadata hold an HParamsPluginData of
  // tensorboard/plugins/hparams/plugin_data.proto.
  void write_hyperparameters(
      const std::vector<std::pair<std::string, HyperparameterValue>>& values);
  const std::string& path() const { return file_->path(); }

 private:
  void write_record(std::string_view event);
  std::unique_ptr<File> file_;
};

// CRC-32C (Castagnoli) of bytes, as in RFC 3720.
uint32_t crc32c(std::string_view bytes);

}  // namespace linnet
