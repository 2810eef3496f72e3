// The rooms of the house, read from every #include: a room is a folder with its cuda/ inside, and
// in attention/ itself a file name. No arrow runs back up, and no mechanism sees another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/data_path.h"

namespace linnet {
namespace {

namespace fs = std::filesystem;

// path -> text of every source that the program is made of.
using Sources = std::map<std::string, std::string>;

std::string room_of(const std::string& path) {
  static const std::regex cuda("/cuda(/.*)?$");
  const fs::path file(path);
  const std::string folder = std::regex_replace(file.parent_path().generic_string(), cuda, "");
  return folder == "attention" ? folder + "/" + file.stem().string() : folder;
}

struct Room {
  int files = 0;
  // Another room -> includes of it as "file includes file".
  std::map<std::string, std::vector<std::string>> arrows;
};

using Rooms = std::map<std::string, Room>;

Rooms rooms_of(const Sources& sources) {
  static const std::regex include(R"re(#\s*include\s*"([^"]+)")re");
  Rooms rooms;
  for (const auto& [path, text] : sources) {
    const std::string own = room_of(path);
    ++rooms[own].files;
    for (std::sregex_iterator at(text.begin(), text.end(), include), end; at != end; ++at) {
      const std::string target = (*at)[1], other = room_of(target);
      if (other != own) rooms[own].arrows[other].push_back(path + " includes " + target);
    }
  }
  return rooms;
}

// The floor of every room: one above the highest room that it sees. An arrow that closes a circle
// runs back up; such arrows are listed and left out.
class Floors {
 public:
  explicit Floors(const Rooms& rooms) : rooms_(rooms) {
    for (const auto& [name, room] : rooms) visit(name);
  }
  const std::map<std::string, int>& of_rooms() const { return floors_; }
  const std::vector<std::string>& back_up() const { return back_up_; }

 private:
  int visit(const std::string& name) {
    const auto known = floors_.find(name);
    if (known != floors_.end()) return known->second;
    open_.insert(name);
    int floor = 1;
    const auto room = rooms_.find(name);
    if (room != rooms_.end()) {
      for (const auto& [other, includes] : room->second.arrows) {
        if (open_.contains(other)) {
          back_up_.insert(back_up_.end(), includes.begin(), includes.end());
        } else {
          floor = std::max(floor, visit(other) + 1);
        }
      }
    }
    open_.erase(name);
    return floors_[name] = floor;
  }

  const Rooms& rooms_;
  std::map<std::string, int> floors_;
  std::set<std::string> open_;
  std::vector<std::string> back_up_;
};

// attention/NAME with NAME.cpp in it, but for the suite.
std::set<std::string> mechanism_rooms(const Sources& sources) {
  static const std::regex own(R"(attention/([a-z0-9_]+)/([a-z0-9_]+)\.cpp)");
  std::set<std::string> result;
  for (const auto& [path, text] : sources) {
    std::smatch match;
    if (std::regex_match(path, match, own) && match[1] == match[2] && match[1] != "conformance") {
      result.insert("attention/" + match[1].str());
    }
  }
  return result;
}

// Mechanisms that inherit from another, with the reason.
const std::map<std::string, std::set<std::string>>& heirs() {
  static const std::map<std::string, std::set<std::string>> allowed = {
      // The same gated unit, quadratic over all tokens instead of inside groups.
      {"attention/flash_quad", {"attention/flash"}},
      // `kind: gau` is FLASH's unit with one of its two parts.
      {"attention/flash_local", {"attention/flash"}},
      {"attention/flash_global", {"attention/flash"}}};
  return allowed;
}

// Includes of a mechanism by a sibling or by shared code; the registry lists them all.
std::vector<std::string> sibling_includes(const Sources& sources) {
  const std::set<std::string> mechanisms = mechanism_rooms(sources);
  std::vector<std::string> found;
  for (const auto& [name, room] : rooms_of(sources)) {
    if (name == "attention/registry") continue;
    const auto heir = heirs().find(name);
    for (const auto& [other, includes] : room.arrows) {
      const bool inherits = heir != heirs().end() && heir->second.contains(other);
      if (!mechanisms.contains(other) || inherits) continue;
      found.insert(found.end(), includes.begin(), includes.end());
    }
  }
  return found;
}

Sources read_sources() {
  const fs::path root = test::source_dir();
  Sources sources;
  for (const char* folder :
       {"core", "autograd", "layers", "attention", "optim", "data", "recipes", "tools"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu") continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      sources[fs::relative(entry.path(), root).generic_string()] = text.str();
    }
  }
  return sources;
}

TEST(Rooms, NoArrowRunsBackUp) {
  const Rooms rooms = rooms_of(read_sources());
  const Floors floors(rooms);
  std::multimap<int, std::string, std::greater<>> by_floor;
  for (const auto& [name, floor] : floors.of_rooms()) by_floor.emplace(floor, name);
  size_t arrows = 0;
  for (const auto& [floor, name] : by_floor) {
    const Room& room = rooms.at(name);  // throws for an include of a room that has no file
    arrows += room.arrows.size();
    std::cout << "floor " << floor << "  " << name << ", files " << room.files << ", sees";
    for (const auto& [other, includes] : room.arrows) {
      std::cout << " " << other << " (" << includes.size() << ")";
    }
    std::cout << "\n";
  }
  std::cout << rooms.size() << " rooms, " << arrows << " arrows, " << floors.back_up().size()
            << " includes that run back up\n";
  EXPECT_GT(rooms.size(), 60);
  EXPECT_GT(arrows, 200);
  EXPECT_THAT(floors.back_up(), ::testing::IsEmpty());
}

TEST(Rooms, NoMechanismIsSeenByASiblingOrBySharedCode) {
  const Sources sources = read_sources();
  EXPECT_GT(mechanism_rooms(sources).size(), 40);
  EXPECT_THAT(sibling_includes(sources), ::testing::IsEmpty());
  // An heir that no longer inherits leaves the list.
  for (const auto& [heir, parents] : heirs()) {
    for (const std::string& parent : parents) {
      EXPECT_TRUE(rooms_of(sources).at(heir).arrows.contains(parent)) << heir << " " << parent;
    }
  }
}

TEST(Rooms, TheChecksFindWhatTheyForbid) {
  using ::testing::ElementsAre;
  const Sources circle = {
      {"core/tensor.h", "#include \"core/cuda/gemm.h\"\n"},
      {"core/cuda/gemm.h", "#include \"core/tensor.h\"\n"},
      {"attention/common/a.h", "// x\n#include \"attention/common/joint/b.h\"\n"},
      {"attention/common/joint/b.h", "#include <vector>\n#include \"attention/common/a.h\"\n"}};
  EXPECT_THAT(Floors(rooms_of(circle)).back_up(),
              ElementsAre("attention/common/joint/b.h includes attention/common/a.h"));
  const Sources files = {{"attention/registry.h", ""},
                         {"attention/registry.cpp", "#include \"attention/lavo/lavo.h\""},
                         {"attention/lavo/lavo.cpp", "#include \"attention/registry.h\""}};
  EXPECT_EQ(Floors(rooms_of(files)).back_up().size(), 1u);
  const Sources siblings = {
      {"attention/lavo/lavo.cpp", "#include \"attention/rfa/rfa.h\""},
      {"attention/rfa/rfa.cpp", ""},
      {"attention/common/a.cpp", "#include \"attention/lavo/cuda/pass.h\""},
      {"attention/flash/flash.cpp", ""},
      {"attention/flash_quad/flash_quad.cpp", "#include \"attention/flash/flash.h\""},
      {"attention/registry.cpp", "#include \"attention/rfa/rfa.h\""}};
  EXPECT_THAT(sibling_includes(siblings),
              ElementsAre("attention/common/a.cpp includes attention/lavo/cuda/pass.h",
                          "attention/lavo/lavo.cpp includes attention/rfa/rfa.h"));
}

}  // namespace
}  // namespace linnet
