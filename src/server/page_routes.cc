#include "server/page/page.h"
#include "server/routes.h"

namespace foresail {

// Open to all even where a key is set: it holds no secret, and asks for the key itself.
void add_page_routes(Router& router) {
  router.add({"GET", "/", Access::kOpen, When::kAlways,
              [policy = page_policy()](const std::shared_ptr<Exchange>& exchange) {
                exchange->send({.body = std::string(page_html()),
                                .content_type = "text/html; charset=utf-8",
                                .fields = {{"Content-Security-Policy", policy},
                                           {"X-Content-Type-Options", "nosniff"},
                                           {"Referrer-Policy", "no-referrer"},
                                           {"Cache-Control", "no-cache"}}});
              }});
}

}  // namespace foresail
