// Writing, verifying and reading one checkpoint directory.
#include "recipes/engine/checkpoint_files.h"

#include <set>

#include "core/files.h"
#include "core/hash.h"
#include "core/version.h"

namespace linnet {
namespace {

constexpr const char* kManifest = "manifest.json";
constexpr const char* kManifestHash = "manifest.xxh3";
constexpr const char* kFormat = "linnet-checkpoint";
constexpr int64_t kFormatVersion = 1;
constexpr uint64_t kMaxManifest = uint64_t{16} << 20;

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kManifest &&
         name != kManifestHash && name.find_first_of(std::string("/\0", 2)) == std::string::npos;
}

void write_and_sync(const std::string& path, std::string_view bytes) {
  File file(path, OpenMode::write);
  file.write(bytes);
  file.sync();
  file.close();
}

struct Entry {
  std::string name;
  uint64_t bytes = 0;
  std::string hash;
};

struct Manifest {
  int64_t step = 0;
  JsonValue metadata;
  std::vector<Entry> entries;
};

Manifest parse_manifest(const std::string& path, const std::string& text) {
  const JsonValue json = parse_json(text, path);
  const std::string format = json.at("format").text();
  const int64_t version = json.at("format_version").integer();
  require(format == kFormat && version == kFormatVersion,
          Cause{ErrorCode::malformed, "format_version"}, "format ", format, " version ", version,
          " is not read by this linnet; it reads ", kFormat, " version ", kFormatVersion);
  Manifest manifest;
  manifest.step = json.at("step").integer();
  manifest.metadata = json.at("metadata");
  std::set<std::string> names;  // a file is read once, whoever wrote the manifest
  for (const JsonValue& file : json.at("files").elements()) {
    Entry entry{file.at("name").text(), 0, file.at("xxh3_128").text()};
    const int64_t bytes = file.at("bytes").integer();
    require(is_plain_name(entry.name) && bytes >= 0 && names.insert(entry.name).second,
            Cause{ErrorCode::malformed, "files"}, "impossible file entry '", entry.name, "'");
    entry.bytes = static_cast<uint64_t>(bytes);
    manifest.entries.push_back(std::move(entry));
  }
  return manifest;
}

Manifest read_manifest(const std::string& directory) {
  const std::string path = join_path(directory, kManifest);
  const std::string text = read_file(path, kMaxManifest);
  const std::string hash_path = join_path(directory, kManifestHash);
  require(read_file(hash_path, kMaxManifest) == hash128_hex(text) + "\n",
          Cause{ErrorCode::malformed, "", path}, path, " or ", hash_path,
          " is damaged: they do not agree");
  try {
    return parse_manifest(path, text);
  } catch (const Error& error) {
    throw Error({ErrorCode::malformed, error.key(), path},
                concat(path, " is not a checkpoint's manifest: ", error.what()));
  }
}

void check_size(const std::string& path, uint64_t expected) {
  const uint64_t found = file_bytes(path);
  require(found == expected, Cause{ErrorCode::malformed, "", path}, path, " is damaged: it has ",
          found, " bytes instead of ", expected);
}

}  // namespace

void write_checkpoint_files(const std::string& directory, int64_t step,
                            const std::map<std::string, std::string>& files,
                            const JsonValue& metadata) {
  JsonValue entries = JsonValue::array();
  for (const auto& [name, bytes] : files) {
    require(is_plain_name(name), "'", name, "' cannot be the name of a file in a checkpoint");
    write_and_sync(join_path(directory, name), bytes);
    entries.push(JsonValue::object()
                     .set("name", name)
                     .set("bytes", bytes.size())
                     .set("xxh3_128", hash128_hex(bytes)));
  }
  const JsonValue manifest = JsonValue::object()
                                 .set("format", kFormat)
                                 .set("format_version", kFormatVersion)
                                 .set("linnet", linnet_version())
                                 .set("git", git_hash())
                                 .set("step", step)
                                 .set("files", entries)
                                 .set("metadata", metadata);
  const std::string text = manifest.dump(2) + "\n";
  write_and_sync(join_path(directory, kManifest), text);
  write_and_sync(join_path(directory, kManifestHash), hash128_hex(text) + "\n");
  file_system().sync_directory(directory);
}

Checkpoint verify_checkpoint(const std::string& directory) {
  const Manifest manifest = read_manifest(directory);
  for (const Entry& entry : manifest.entries) {
    const std::string path = join_path(directory, entry.name);
    check_size(path, entry.bytes);
    require(hash128_hex_of_file(path) == entry.hash, Cause{ErrorCode::malformed, "", path}, path,
            " is damaged: its contents do not have the hash in the manifest");
  }
  return {directory, manifest.step, manifest.metadata, {}};
}

Checkpoint read_manifest_of(const std::string& directory) {
  const Manifest manifest = read_manifest(directory);
  return {directory, manifest.step, manifest.metadata, {}};
}

Checkpoint load_checkpoint(const std::string& directory) {
  const Manifest manifest = read_manifest(directory);
  Checkpoint checkpoint{directory, manifest.step, manifest.metadata, {}};
  for (const Entry& entry : manifest.entries) {
    const std::string path = join_path(directory, entry.name);
    check_size(path, entry.bytes);
    std::string bytes = read_file(path, entry.bytes);
    require(hash128_hex(bytes) == entry.hash, Cause{ErrorCode::malformed, "", path}, path,
            " is damaged: its contents do not have the hash in the manifest");
    checkpoint.files[entry.name] = std::move(bytes);
  }
  return checkpoint;
}

bool is_checkpoint(const std::string& directory) {
  return exists(join_path(directory, kManifest));
}

}  // namespace linnet
