#include "strict_json/schema.h"
#include "support/catch.h"

namespace mnist_train::strict_json {

TEST_CASE("an unknown key gets a suggestion") {
  const std::vector<KnownKey> keys{{"", "epochs", {"num_epochs"}},
                                   {"", "batch_size", {}},
                                   {"", "model", {}},
                                   {"", "launch", {}},
                                   {"/model", "name", {"arch"}},
                                   {"/schedule", "name", {}},
                                   {"/launch", "max_restarts", {"restarts"}}};
  struct Case {
    const char* key;
    const char* group;
    const char* message;
  };
  const Case row = GENERATE(values<Case>({
      {"epoch", "", R"(unknown key "epoch"; did you mean "epochs"?)"},
      {"epo", "", R"(unknown key "epo"; did you mean "epochs"?)"},
      {"launch.max_restarts", "",
       R"(unknown key "launch.max_restarts"; it is "max_restarts" in /launch)"},
      {"eopchs", "", R"(unknown key "eopchs"; did you mean "epochs"?)"},
      {"num_epochs", "", R"(unknown key "num_epochs"; did you mean "epochs"?)"},
      {"numEpochs", "", R"(unknown key "numEpochs"; did you mean "epochs"?)"},
      {"batchSize", "", R"(unknown key "batchSize"; did you mean "batch_size"?)"},
      {"batch-size", "", R"(unknown key "batch-size"; did you mean "batch_size"?)"},
      {"max_restarts", "", R"(unknown key "max_restarts"; it belongs in /launch)"},
      {"name", "", R"(unknown key "name"; it belongs in /model or in /schedule)"},
      {"epochs", "/launch", R"(unknown key "epochs"; it belongs at the top level)"},
      {"restarts", "", R"(unknown key "restarts"; did you mean "max_restarts" in /launch?)"},
      {"max_restart", "/model",
       R"(unknown key "max_restart"; did you mean "max_restarts" in /launch?)"},
      {"colour", "/launch", R"(unknown key "colour"; valid here: max_restarts)"},
      {"zz", "", R"(unknown key "zz"; valid here: epochs, batch_size, model, launch)"},
      {"", "/launch", R"(unknown key ""; valid here: max_restarts)"},
  }));
  CHECK(explain_unknown_key(row.key, row.group, keys) == row.message);
}

TEST_CASE("a very long key is neither compared nor shown in full") {
  const std::string message = explain_unknown_key(std::string(100000, 'e'), "", {{"", "e", {}}});
  CHECK(message == "unknown key \"" + std::string(40, 'e') + "…\"; valid here: e");
}

}  // namespace mnist_train::strict_json
