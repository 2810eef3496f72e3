// One checkpoint directory: its files, their hashes in manifest.json, the manifest's own hash.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/json.h"

namespace linnet {

struct Checkpoint {
  std::string path;
  int64_t step = 0;
  JsonValue metadata = JsonValue::object();
  std::map<std::string, std::string> files;  // name -> contents, not yet parsed
};

// Writes the files, manifest.json (step, linnet's version, name, size and XXH3-128 of each file,
// metadata) and manifest.xxh3 into an existing directory and forces all of it to the disk. Names
// are plain file names. Throws Error at the first call that fails; the directory is then
// incomplete.
void write_checkpoint_files(const std::string& directory, int64_t step,
                            const std::map<std::string, std::string>& files,
                            const JsonValue& metadata);

// Checks every byte of a checkpoint directory against its hashes; throws Error naming the damaged
// file. The result has no file contents.
Checkpoint verify_checkpoint(const std::string& directory);

// Its step and metadata alone; of the hashes, only that of the manifest is verified.
Checkpoint read_manifest_of(const std::string& directory);

// Reads a checkpoint directory into memory; all hashes are verified on those very bytes before
// anything is returned. Throws Error naming the damaged file.
Checkpoint load_checkpoint(const std::string& directory);

// Whether the directory has a manifest, intact or not.
bool is_checkpoint(const std::string& directory);

}  // namespace linnet
