#pragma once

#include "cli/command_line.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's
class App;
}  // namespace CLI

namespace mnist_train::cli {

// Each adds the flags, arguments and examples of one command, which fill `line`.

void add_train(CLI::App& command, CommandLine& line);
void add_evaluate(CLI::App& command, CommandLine& line);
void add_predict(CLI::App& command, CommandLine& line);
void add_preview(CLI::App& command, CommandLine& line);
void add_export(CLI::App& command, CommandLine& line);
void add_describe(CLI::App& command, CommandLine& line);
void add_fetch(CLI::App& command, CommandLine& line);
void add_convert(CLI::App& command, CommandLine& line);
void add_report(CLI::App& command, CommandLine& line);
void add_doctor(CLI::App& command, CommandLine& line);
void add_config_schema(CLI::App& command, CommandLine& line);
void add_completion(CLI::App& command, CommandLine& line);
void add_man_page(CLI::App& command, CommandLine& line);

}  // namespace mnist_train::cli
