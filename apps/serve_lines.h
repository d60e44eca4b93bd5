// What `serve` says on stderr beside what becomes of requests: its start, its end and its faults.
// For people, or as objects of its log: who reads that by machine reads every line so.
#pragma once

#include <string>
#include <string_view>

#include "server/server.h"

namespace foresail {

class ServeLines {
 public:
  // With `json`, warnings and errors of the whole process are objects from here on.
  explicit ServeLines(bool json);

  void limits(const ServeOptions& serve) const;
  // On stdout, whoever may read it: past stdio, where what could not be written would make a
  // failure of a server that stops as it was asked to.
  static void ready(const std::string& line);
  void listening(const std::string& url, const std::string& model_path) const;
  void stopping(int timeout_s) const;
  void stopped(int64_t cut_requests, const std::string& cut_by) const;

 private:
  void say(std::string_view event, const OrderedJson& fields, std::string_view text) const;

  bool json_;
};

}  // namespace foresail
