#include "apps/program.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "apps/field_names.h"
#include "apps/standard_error.h"
#include "base/error.h"
#include "base/utf8.h"

namespace foresail {
namespace {

constexpr int kInternalFault = 1;

LinePrinter line_printer = [](std::string_view kind, std::string_view message) {
  tell("{}: {}\n", kind, for_terminal(message));
};

// Names and values that the user typed may hold line breaks; an error is one line all the same.
int report(std::string_view message, int status) {
  std::string line;
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F)
      line += fmt::format("\\x{:02x}", byte);
    else
      line.push_back(c);
  }
  print_line("error", line);
  return status;
}

int report(std::string_view message, ErrorCode code) {
  return report(message, static_cast<int>(code));
}

// Of a thread that ran out of memory where nothing could be given up for it.
[[noreturn]] void end_of_a_thread() {
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::bad_alloc&) {
      std::_Exit(report("not enough memory", ErrorCode::kDevice));
    } catch (const std::exception& other) {
      report(fmt::format("a fault of foresail itself, please report it: {}", other.what()),
             kInternalFault);
    }
  }
  std::abort();
}

// Where one is closed, the next file or socket would have its number, and be read as input or
// written to by whoever says something. Reading and writing fail as they would have.
void occupy_standard_descriptors() {
  for (const auto& [descriptor, mode] :
       {std::pair(STDIN_FILENO, O_WRONLY), std::pair(STDOUT_FILENO, O_RDONLY),
        std::pair(STDERR_FILENO, O_WRONLY)})
    if (fcntl(descriptor, F_GETFD) < 0) open("/dev/null", mode);  // has the lowest number
}

}  // namespace

int run_program(CommandLine& line, int argc, char** argv) {
  occupy_standard_descriptors();
  std::set_terminate(end_of_a_thread);
  spdlog::set_default_logger(spdlog::stderr_color_mt("foresail"));
  try {
    line.run(argc, argv);
    // A full disk must not look like success.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      throw_error(ErrorCode::kUsage, "cannot write to standard output");
    return 0;
  } catch (const Error& error) {
    return report(with_flags(error.what()), error.code());
  } catch (const std::bad_alloc&) {
    return report("not enough memory", ErrorCode::kDevice);
  } catch (const std::system_error& error) {  // a closed stdout, a full disk
    return report(error.what(), ErrorCode::kUsage);
  } catch (const std::exception& error) {
    return report(fmt::format("a fault of foresail itself, please report it: {}", error.what()),
                  kInternalFault);
  }
}

int run_program(const std::string& name, const std::string& description, int argc, char** argv,
                const std::function<void(Command& command)>& add_flags) {
  CommandLine line(name, description);
  add_flags(line.root());
  return run_program(line, argc, argv);
}

void print_line(std::string_view kind, std::string_view message) {
  line_printer(kind, message);
}

void print_lines_with(LinePrinter printer) {
  line_printer = printer;
}

void throw_usage_error(const std::string& message) {
  throw Error(ErrorCode::kUsage, message);
}

void throw_device_error(const std::string& message) {
  throw Error(ErrorCode::kDevice, message);
}

}  // namespace foresail
