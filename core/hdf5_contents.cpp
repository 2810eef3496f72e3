// Superblock, object headers, groups, heaps and trees of an HDF5 file, bounds first.
#include "core/hdf5_contents.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <set>

namespace linnet::hdf5 {
namespace {

constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
constexpr uint64_t kNowhere = UINT64_MAX;
constexpr size_t kMaxDepth = 64, kMaxPath = 1024;
// Trees of more levels would have more entries than a file has bytes.
constexpr uint64_t kMaxLevel = 16;
constexpr const char* kNewer =
    "uses a newer format of HDF5 than linnet reads; write it with the library's defaults (in h5py "
    "without libver and track_order)";

// Types of messages in object headers.
enum : uint64_t {
  kSpace = 1,
  kLinkInfo = 2,
  kType = 3,
  kExternalFiles = 7,
  kLayout = 8,
  kFilters = 11,
  kAttribute = 12,
  kContinuation = 16,
  kSymbolTable = 17,
  kAttributeInfo = 21,
};

struct Message {
  uint64_t type = 0;
  bool shared = false;  // the body is elsewhere
  std::string_view body;
};

uint64_t padded(uint64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

class Parser {
 public:
  Parser(std::string_view image, const std::string& label) : image_(image), label_(label) {}

  Object root() {
    if (!image_.starts_with(kSignature)) {
      damaged(label_, "is not an HDF5 file, or is damaged (", image_.size(), " bytes)");
    }
    Cursor block = structure(0, 96);
    block.take(kSignature.size());
    const uint64_t version = block.number(1);
    if (version > 1) damaged(label_, kNewer);
    block.take(4);
    if (block.number(1) != 8 || block.number(1) != 8) {
      damaged(label_, "has addresses of another size than 8 bytes; write it on a 64-bit system");
    }
    block.take(version == 0 ? 9 : 13);
    if (block.number(8) != 0) damaged(label_, "does not begin at its first byte");
    block.take(8);
    const uint64_t end = block.number(8);
    if (end > image_.size()) {
      damaged(label_, "is truncated or damaged: it should have ", end, " bytes but has ",
              image_.size());
    }
    block.take(16);
    Object root;
    object(block.number(8), "/", 0, root);
    if (root.kind != Object::Kind::group) damaged(label_, "is damaged: its root is not a group");
    return root;
  }

 private:
  // What lies at an address. Bytes that two structures or datasets claim are an error, found from
  // the sum: without it, a small file could ask for any amount of work.
  std::string_view piece(uint64_t address, uint64_t bytes) {
    if (address > image_.size() || bytes > image_.size() - address) {
      damaged(label_, "is truncated or damaged: ", bytes, " bytes at ", address,
              " are beyond its end at ", image_.size());
    }
    claim(bytes);
    return image_.substr(address, bytes);
  }
  Cursor structure(uint64_t address, uint64_t bytes) {
    return Cursor(piece(address, bytes), label_);
  }
  void claim(uint64_t bytes) {
    if (bytes > image_.size() - claimed_) {
      damaged(label_, "is damaged: parts of it overlap");
    }
    claimed_ += bytes;
  }
  void expect(Cursor& block, std::string_view mark) {
    if (block.take(mark.size()) != mark) damaged(label_, "is damaged: ", mark, " expected");
  }

  // Of an object header, its continuations included.
  std::vector<Message> messages(uint64_t address) {
    if (address <= image_.size() && image_.substr(address).starts_with("OHDR"))
      damaged(label_, kNewer);
    Cursor head = structure(address, 16);
    if (head.number(1) != 1) damaged(label_, "is damaged: no object header at ", address);
    head.take(1);
    uint64_t left = head.number(2);
    head.take(4);
    std::vector<Message> found;
    std::deque<Cursor> blocks{structure(address + 16, head.number(4))};
    for (; !blocks.empty(); blocks.pop_front()) {
      Cursor block = blocks.front();
      while (block.left() >= 8 && left > 0) {
        --left;
        Message message;
        message.type = block.number(2);
        const uint64_t bytes = block.number(2);
        message.shared = (block.number(1) & 2) != 0;
        block.take(3);
        message.body = block.take(bytes);
        if (message.type == kContinuation) {
          Cursor body(message.body, label_);
          const uint64_t at = body.number(8);
          blocks.push_back(structure(at, body.number(8)));
        } else {
          found.push_back(message);
        }
      }
    }
    return found;
  }

  void object(uint64_t address, const std::string& path, size_t depth, Object& to) {
    if (depth > kMaxDepth) damaged(label_, "has groups nested deeper than ", kMaxDepth);
    if (!objects_.insert(address).second) {
      damaged(label_, "has two names for one object, one of them '", path,
              "'; store the object twice");
    }
    std::array<std::optional<Message>, 32> one;
    for (const Message& message : messages(address)) {
      if (message.type == kAttribute && !message.shared) {
        attribute(message.body, to);
      } else if (message.type < one.size()) {
        one[message.type] = message;
      }
    }
    if (one[kLinkInfo] || one[kAttributeInfo]) damaged(label_, kNewer);
    if (one[kSymbolTable]) {
      to.kind = Object::Kind::group;
      group(Cursor(one[kSymbolTable]->body, label_), path, depth, to);
    } else if (one[kLayout] && one[kType] && one[kSpace]) {
      to.kind = Object::Kind::dataset;
      if (!one[kType]->shared) to.array.type = parse_type(Cursor(one[kType]->body, label_));
      if (one[kSpace]->shared) damaged(label_, "'", path, "' shares its shape with another object");
      parse_space(Cursor(one[kSpace]->body, label_), to.array, label_);
      if (one[kExternalFiles]) {
        to.array.unreadable = "are stored outside the file; this is refused";
      } else {
        if (one[kFilters]) filters(*one[kFilters], to.array);
        layout(Cursor(one[kLayout]->body, label_), to.array);
      }
      variable_text(to.array);
    }
  }

  void group(Cursor table, const std::string& path, size_t depth, Object& to) {
    const uint64_t tree = table.number(8);
    Cursor heap = structure(table.number(8), 32);
    expect(heap, "HEAP");
    heap.take(4);
    const uint64_t bytes = heap.number(8);
    heap.take(8);
    const uint64_t begin = heap.number(8);
    if (begin > image_.size() || bytes > image_.size() - begin)
      damaged(label_, "is damaged: the names of '", path, "' are beyond its end");
    const std::string_view names = image_.substr(begin, bytes);
    walk(tree, 0, 8, [&](Cursor, uint64_t child) {
      Cursor head = structure(child, 8);
      expect(head, "SNOD");
      head.take(2);
      const uint64_t count = head.number(2);
      Cursor entries = structure(child + 8, 40 * count);
      for (uint64_t i = 0; i < count; ++i) {
        const std::string_view name = name_at(names, entries.number(8), path);
        const uint64_t address = entries.number(8);
        const bool link = entries.number(4) == 2;
        entries.take(20);
        const std::string member = concat(path, path.back() == '/' ? "" : "/", name);
        if (member.size() > kMaxPath)
          damaged(label_, "has a path of more than ", kMaxPath, " bytes");
        const auto [at, fresh] = to.members.try_emplace(std::string(name));
        if (!fresh) damaged(label_, "is damaged: it has '", member, "' twice");
        at->second = std::make_unique<Object>();
        if (link) {
          at->second->kind = Object::Kind::link;
        } else {
          object(address, member, depth + 1, *at->second);
        }
      }
    });
  }

  std::string_view name_at(std::string_view names, uint64_t offset, const std::string& path) {
    const size_t end = offset < names.size() ? names.find('\0', offset) : std::string_view::npos;
    if (end == std::string_view::npos || end == offset)
      damaged(label_, "is damaged: a member of '", path, "' has no name");
    const std::string_view name = names.substr(offset, end - offset);
    if (name.find('/') != std::string_view::npos)
      damaged(label_, "is damaged: a member of '", path, "' is called '", name, "'");
    claim(name.size() + 1);
    return name;
  }

  // Calls leaf(key, child) for all entries below a node of a version 1 B-tree.
  using Leaf = std::function<void(Cursor key, uint64_t child)>;
  void walk(uint64_t address, uint64_t type, uint64_t key_bytes, const Leaf& leaf,
            std::optional<uint64_t> expected_level = {}) {
    Cursor head = structure(address, 24);
    expect(head, "TREE");
    if (head.number(1) != type) damaged(label_, "is damaged: a tree of another kind at ", address);
    const uint64_t level = head.number(1), count = head.number(2);
    if (level > kMaxLevel || level != expected_level.value_or(level))
      damaged(label_, "is damaged: the tree at ", address,
              " has another level than its parent says");
    Cursor entries = structure(address + 24, count * (key_bytes + 8));
    for (uint64_t i = 0; i < count; ++i) {
      const Cursor key(entries.take(key_bytes), label_);
      const uint64_t child = entries.number(8);
      if (level == 0) {
        leaf(key, child);
      } else {
        walk(child, type, key_bytes, leaf, level - 1);
      }
    }
  }

  void attribute(std::string_view body, Object& to) {
    Cursor message(body, label_);
    const uint64_t version = message.number(1), flags = message.number(1);
    if (version < 1 || version > 3)
      damaged(label_, "is damaged: an attribute of version ", version);
    const uint64_t name_bytes = message.number(2), type_bytes = message.number(2),
                   space_bytes = message.number(2);
    if (version == 3) message.take(1);
    const auto part = [&](uint64_t bytes) {
      return message.take(version == 1 ? padded(bytes) : bytes).substr(0, bytes);
    };
    const std::string_view name = part(name_bytes);
    const std::string_view type = part(type_bytes), space = part(space_bytes);
    Array array;
    // Versions 2 and 3 can refer to types that are stored elsewhere.
    if (version == 1 || (flags & 3) == 0) {
      array.type = parse_type(Cursor(type, label_));
      parse_space(Cursor(space, label_), array, label_);
      array.stored = message.take(product(array.elements(), array.type.bytes));
      variable_text(array);
    }
    const std::string key(name.substr(0, name.find('\0')));
    if (!to.attributes.try_emplace(key, std::move(array)).second)
      damaged(label_, "is damaged: it has the attribute '", key, "' twice");
  }

  void layout(Cursor message, Array& array) {
    const uint64_t version = message.number(1), kind = message.number(1);
    if (version != 3) {
      array.unreadable = concat("are laid out in version ", version,
                                " of HDF5's format; linnet "
                                "reads version 3, the library's default");
    } else if (kind == 0) {
      array.stored = message.take(message.number(2));
    } else if (kind == 1) {
      const uint64_t address = message.number(8), bytes = message.number(8);
      if (address != kNowhere) array.stored = piece(address, bytes);
    } else if (kind == 2) {
      chunks(message, array);
    } else {
      array.unreadable = "are stored in an unknown way";
    }
  }

  void chunks(Cursor message, Array& array) {
    const uint64_t rank = message.number(1), tree = message.number(8);
    if (rank < 2 || rank > kMaxRank + 1 || rank - 1 != array.sizes.size())
      damaged(label_, "is damaged: chunks of ", rank, " dimensions");
    for (uint64_t i = 0; i + 1 < rank; ++i) array.chunk.push_back(message.number(4));
    const uint64_t element = message.number(4);
    if (element != array.type.bytes || std::count(array.chunk.begin(), array.chunk.end(), 0u) > 0)
      damaged(label_, "is damaged: empty chunks");
    if (tree == kNowhere) return;
    walk(tree, 1, 8 + 8 * rank, [&](Cursor key, uint64_t child) {
      Chunk chunk;
      const uint64_t bytes = key.number(4);
      chunk.skipped_filters = key.number(4);
      for (uint64_t i = 0; i + 1 < rank; ++i) chunk.at.push_back(key.number(8));
      chunk.stored = piece(child, bytes);
      array.chunks.push_back(std::move(chunk));
    });
  }

  void filters(const Message& from, Array& array) {
    Cursor message(from.body, label_);
    const uint64_t version = message.number(1), count = message.number(1);
    if (version == 1) message.take(6);
    bool known = !from.shared && (version == 1 || version == 2);
    for (uint64_t i = 0; known && i < count; ++i) {
      const uint64_t id = message.number(2);
      const Filter filter = id == 1 ? Filter::deflate : Filter::shuffle;
      // Each at most once: 255 of them would multiply the time.
      known = (id == 1 || id == 2) &&
              std::count(array.filters.begin(), array.filters.end(), filter) == 0;
      if (!known) break;
      const uint64_t name_bytes = version == 1 ? message.number(2) : 0;
      message.take(2);
      const uint64_t values = message.number(2);
      message.take(padded(name_bytes) + 4 * (version == 1 ? values + values % 2 : values));
      array.filters.push_back(filter);
    }
    if (!known) array.unreadable = "are stored by filters other than one deflate and one shuffle";
  }

  // Finds the text of an array of one variable-length text.
  void variable_text(Array& array) {
    if (array.type.kind != Type::Kind::variable_text || !array.has_shape || array.elements() != 1 ||
        array.stored.size() < 16)
      return;
    Cursor reference(array.stored, label_);
    const uint64_t bytes = reference.number(4), address = reference.number(8),
                   index = reference.number(4);
    if (bytes == 0 || address == 0) return;
    const std::map<uint64_t, std::string_view>& heap = collection(address);
    const auto found = heap.find(index);
    if (found == heap.end() || found->second.size() < bytes)
      damaged(label_, "is damaged: a text is not where it should be");
    array.text = found->second.substr(0, bytes);
  }

  // The objects of a collection of the global heap.
  const std::map<uint64_t, std::string_view>& collection(uint64_t address) {
    const auto [at, fresh] = collections_.try_emplace(address);
    if (!fresh) return at->second;
    Cursor head = structure(address, 16);
    expect(head, "GCOL");
    head.take(4);
    const uint64_t bytes = head.number(8);
    if (bytes < 16) damaged(label_, "is damaged: an impossible heap at ", address);
    Cursor objects = structure(address + 16, bytes - 16);
    while (objects.left() >= 16) {
      const uint64_t index = objects.number(2);
      objects.take(6);
      const uint64_t size = objects.number(8);
      if (index == 0) break;  // free space
      at->second[index] = objects.take(size);
      objects.take(std::min(objects.left(), padded(size) - size));
    }
    return at->second;
  }

  std::string_view image_;
  const std::string& label_;
  uint64_t claimed_ = 0;
  std::set<uint64_t> objects_;  // addresses of their headers
  std::map<uint64_t, std::map<uint64_t, std::string_view>> collections_;
};

}  // namespace

Object parse_contents(std::string_view image, const std::string& label) {
  return Parser(image, label).root();
}

}  // namespace linnet::hdf5
