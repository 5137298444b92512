#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/pt_file.h"
#include "support/catch.h"
#include "support/pickles.h"

namespace mnist_train::checkpoint {
namespace {

using namespace testing::pickles;
using Catch::Matchers::ContainsSubstring;

struct Hostile {
  std::string pickle;
  const char* reason;
};

void check_refused(const std::vector<Hostile>& cases) {
  for (const Hostile& bad : cases) {
    std::optional<std::string> reason;
    try {
      unpickle_state_dict(bad.pickle);
    } catch (const std::exception& error) {
      reason = error.what();
    }
    INFO(bad.reason);
    REQUIRE(reason);
    CHECK_THAT(*reason, ContainsSubstring(bad.reason));
  }
}

const std::string kOrdered = global("collections", "OrderedDict");
const std::string kRebuild = global("torch._utils", "_rebuild_tensor_v2");

TEST_CASE("functions and opcodes that no state_dict needs are refused by name") {
  check_refused({
      {"\x80\x02" + global("os", "system") + tuple(text("touch /tmp/x")) + "R.",
       "asks for os.system"},
      {"\x80\x02" + global("posix", "system") + ".", "asks for posix.system"},
      {"\x80\x02" + global("builtins", "eval") + ".", "asks for builtins.eval"},
      {"\x80\x02" + global("torch", "load") + ".", "asks for torch.load"},
      {"\x80\x02" + global("torch._utils", "_rebuild_tensor_v2.__globals__") + ".", "asks for"},
      {"\x80\x02" + global("torch.serialization", "_get_layout") + ".", "asks for"},
      {std::string("\x80\x04\x95\0\0\0\0\0\0\0\0}.", 13), "opcode 149"},  // FRAME
      {"ios\nsystem\n.", "opcode 105"},                                   // INST
      {"\x80\x02(o.", "opcode 111"},                                      // OBJ
      {"\x80\x02\x93.", "opcode 147"},                                    // STACK_GLOBAL
      {"\x80\x02\x81.", "opcode 129"},                                    // NEWOBJ
      {"\x80\x02P0\n.", "opcode 80"},                                     // PERSID
      {"\x80\x02\x82\x01.", "opcode 130"},                                // EXT1
      {"\x80\x02"
       "C\x01x.",
       "opcode 67"},                   // SHORT_BINBYTES
      {"\x80\x02I3\n.", "opcode 73"},  // INT, as text
      {std::string("\x80\x02\0.", 4), "opcode 0"},
      {"\x80\x02.", "stack is empty"},
      {"\x80\x02R.", "stack is empty"},
      {"\x80\x02Nt.", "stack is empty"},
      {"\x80\x02}u.", "stack is empty"},
      {"\x80\x02\x87.", "stack is empty"},
      {"\x80\x02(.", "not a dict"},
      {"\x80\x02N.", "not a dict"},
      {"\x80\x02].", "not a dict"},
      {"\x80\x02NNa.", "appends to something that is not a list"},
      {"\x80\x02}(Ne.", "not a list"},
      {"\x80\x02G123.", "ends too early"},
      {"\x80\x02" + small_tensor() + ".", "not a dict"},
      {"\x80\x02" + kOrdered + ".", "not a dict"},
      {"\x80\x02h\x07.", "recalls what it never kept"},
      {"\x80\x02\x8a\x09" + std::string(9, '\x01') + ".", "more than 64 bits"},
      {"\x80\x02X\xff\xff\xff\xff"
       "abc.",
       "ends too early"},
      {"\x80\x02"
       "cno newline",
       "ends too early"},
  });
}

TEST_CASE("calls, storages and tensors that are no state_dict's are refused with the reason") {
  const auto with_tensor = [](const std::string& value) { return dict(text("w") + value); };
  const auto dimensions = [](int count) {
    std::string items;
    for (int i = 0; i < count; ++i) items += integer(1);
    return items;
  };
  check_refused({
      {"\x80\x02N" + tuple("") + "R.", "not a function"},
      {"\x80\x02" + kOrdered + "NR.", "not a function"},
      {"\x80\x02" + kOrdered + tuple("N") + "R.", "in an unknown way"},
      {"\x80\x02" + global("torch", "FloatStorage") + ")R.", "in an unknown way"},
      {"\x80\x02" + global("torch._utils", "_rebuild_parameter") + ")R.", "in an unknown way"},
      {"\x80\x02" + global("torch._utils", "_rebuild_parameter") + tuple("N") + "R.",
       "in an unknown way"},
      {"\x80\x02" + kRebuild + ")R.", "described in an unknown way"},
      {"\x80\x02" + kRebuild + tuple("NNNN") + "R.", "described in an unknown way"},
      {"\x80\x02NQ.", "storage is described in an unknown way"},
      {"\x80\x02" + tuple("NNN") + "Q.", "storage is described in an unknown way"},
      {"\x80\x02" + tuple(text("storage") + kOrdered + text("0")) + "Q.", "unknown type"},
      {with_tensor(tensor(storage("0"), -1, integer(1), integer(1))), "in an unknown way"},
      {with_tensor(tensor(storage("0"), 0, integer(-1), integer(1))), "non-negative"},
      {with_tensor(tensor(storage("0"), 0, integer(1), integer(-1))), "non-negative"},
      {with_tensor(tensor(storage("0"), 0, "N", integer(1))), "non-negative"},
      {with_tensor(tensor(storage("0"), 0, integer(1), "")), "as many strides"},
      {with_tensor(tensor(storage("0"), 0, dimensions(65), dimensions(65))),
       "not a tuple of integers"},
      {with_tensor(tensor(storage("0"), INT64_MAX, (integer(INT64_MAX) + integer(INT64_MAX)),
                          (integer(INT64_MAX) + integer(INT64_MAX)))),
       "overflows"},
      {with_tensor("K\x01"), "\"w\" is not a tensor"},
      {with_tensor("N"), "\"w\" is not a tensor"},
      {with_tensor("}"), "\"w\" is not a tensor"},
      {dict(text("model") + "}(" + text("w") + small_tensor() + "u"), "\"model\" is not a tensor"},
      {dict(text("state_dict") + "}(" + text("w") + "Nu"),
       "in \"state_dict\" \"w\" is not a tensor"},
      {dict(text("state_dict") + "}(K\x01" + small_tensor() + "u"),
       "in \"state_dict\" a dict has a key"},
      {dict(text("state_dict") + "}(" + text("state_dict") + "}" + text("w") + "Nu"), "\"w\""},
      {dict(text("") + "N"), "not a tensor"},
      {dict("K\x01" + small_tensor()), "a key that is not text"},
      {dict(text("w")), "sets items of something that is not a dict"},
      {"\x80\x02N" + text("w") + small_tensor() + "s.", "not a dict"},
  });
}

}  // namespace
}  // namespace mnist_train::checkpoint
