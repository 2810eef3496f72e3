// TFRecord framing and the few protocol-buffer fields that scalars need.
#include "recipes/engine/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstdio>

namespace linnet {
namespace {

// Field numbers of Event, Summary, Summary.Value and SessionLog.
constexpr uint32_t kEventWallTime = 1;
constexpr uint32_t kEventStep = 2;
constexpr uint32_t kEventFileVersion = 3;
constexpr uint32_t kEventSummary = 5;
constexpr uint32_t kEventSessionLog = 7;
constexpr uint32_t kSummaryValue = 1;
constexpr uint32_t kValueTag = 1;
constexpr uint32_t kValueSimpleValue = 2;
constexpr uint32_t kSessionLogStatus = 1;
constexpr uint64_t kSessionLogStart = 1;
// Of Summary.Value, SummaryMetadata, its PluginData and TensorProto.
constexpr uint32_t kValueTensor = 8, kValueMetadata = 9;
constexpr uint32_t kMetadataPlugin = 1, kMetadataDataClass = 4, kPluginName = 1, kPluginContent = 2;
constexpr uint64_t kDataClassTensor = 2;
constexpr uint32_t kTensorType = 1, kTensorShape = 2, kTensorFloats = 5, kShapeSize = 2, kSize = 1;
constexpr uint64_t kTypeFloat = 1;
// Of HParamsPluginData, SessionStartInfo, a map's entry and google.protobuf.Value.
constexpr uint32_t kHparamsSessionStart = 3, kSessionHparams = 1, kSessionStartSeconds = 5;
constexpr uint32_t kEntryKey = 1, kEntryValue = 2;
constexpr uint32_t kNumberValue = 2, kStringValue = 3, kBoolValue = 4;

template <typename T>
void append_little_endian(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// Wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
void append_key(std::string& out, uint32_t field, uint32_t wire_type) {
  append_varint(out, field << 3 | wire_type);
}
void append_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  append_key(out, field, 2);
  append_varint(out, bytes.size());
  out += bytes;
}
void append_integer(std::string& out, uint32_t field, uint64_t value) {
  append_key(out, field, 0);
  append_varint(out, value);
}
void append_double(std::string& out, uint32_t field, double value) {
  append_key(out, field, 1);
  append_little_endian(out, std::bit_cast<uint64_t>(value));
}
void append_float(std::string& out, uint32_t field, float value) {
  append_key(out, field, 5);
  append_little_endian(out, std::bit_cast<uint32_t>(value));
}

uint32_t masked(uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8u;
}

int64_t microseconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

std::string encoded(const HyperparameterValue& value) {
  std::string message;
  if (const auto* number = std::get_if<double>(&value))
    append_double(message, kNumberValue, *number);
  else if (const auto* text = std::get_if<std::string>(&value))
    append_bytes(message, kStringValue, *text);
  else
    append_integer(message, kBoolValue, std::get<bool>(value) ? 1 : 0);
  return message;
}

// A vector with the number 0: what the page expects beside the metadata.
std::string empty_tensor() {
  std::string size, shape, tensor;
  append_integer(size, kSize, 1);
  append_bytes(shape, kShapeSize, size);
  append_integer(tensor, kTensorType, kTypeFloat);
  append_bytes(tensor, kTensorShape, shape);
  append_float(tensor, kTensorFloats, 0);
  return tensor;
}

std::string event_now() {
  std::string event;
  append_double(event, kEventWallTime, static_cast<double>(microseconds_now()) * 1e-6);
  return event;
}

// TensorBoard reads the files of a folder in alphabetical order: the time comes first.
std::string new_file_name() {
  const int64_t now = microseconds_now();
  char time[40];
  std::snprintf(time, sizeof(time), "%010lld.%06lld", static_cast<long long>(now / 1'000'000),
                static_cast<long long>(now % 1'000'000));
  char host[256] = "localhost";
  if (::gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return concat("events.out.tfevents.", time, '.', host, '.', ::getpid());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82f63b78u : 0);
      made[i] = value;
    }
    return made;
  }();
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder, int64_t resumed_at) {
  create_directories(folder);
  file_ = std::make_unique<File>(join_path(folder, new_file_name()), OpenMode::append);
  std::string version = event_now();
  append_bytes(version, kEventFileVersion, "brain.Event:2");
  write_record(version);
  if (resumed_at < 0) return;
  std::string start = event_now();
  append_integer(start, kEventStep, static_cast<uint64_t>(resumed_at + 1));
  std::string status;
  append_integer(status, kSessionLogStatus, kSessionLogStart);
  append_bytes(start, kEventSessionLog, status);
  write_record(start);
}

void TensorBoardWriter::write_scalars(int64_t step,
                                      const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string item;
    append_bytes(item, kValueTag, tag);
    append_float(item, kValueSimpleValue, static_cast<float>(value));
    append_bytes(summary, kSummaryValue, item);
  }
  std::string event = event_now();
  append_integer(event, kEventStep, static_cast<uint64_t>(step));
  append_bytes(event, kEventSummary, summary);
  write_record(event);
}

void TensorBoardWriter::write_hyperparameters(
    const std::vector<std::pair<std::string, HyperparameterValue>>& values) {
  std::string session;
  for (const auto& [name, value] : values) {
    std::string entry;
    append_bytes(entry, kEntryKey, name);
    append_bytes(entry, kEntryValue, encoded(value));
    append_bytes(session, kSessionHparams, entry);
  }
  append_double(session, kSessionStartSeconds, static_cast<double>(microseconds_now()) * 1e-6);
  std::string content, plugin, metadata, item, summary;
  append_bytes(content, kHparamsSessionStart, session);
  append_bytes(plugin, kPluginName, "hparams");
  append_bytes(plugin, kPluginContent, content);
  append_bytes(metadata, kMetadataPlugin, plugin);
  append_integer(metadata, kMetadataDataClass, kDataClassTensor);
  append_bytes(item, kValueTag, "_hparams_/session_start_info");
  append_bytes(item, kValueTensor, empty_tensor());
  append_bytes(item, kValueMetadata, metadata);
  append_bytes(summary, kSummaryValue, item);
  std::string event = event_now();
  append_bytes(event, kEventSummary, summary);
  write_record(event);
}

void TensorBoardWriter::write_record(std::string_view event) {
  std::string record;
  append_little_endian(record, uint64_t{event.size()});
  append_little_endian(record, masked(crc32c(record)));
  record += event;
  append_little_endian(record, masked(crc32c(event)));
  file_->write(record);
}

}  // namespace linnet
