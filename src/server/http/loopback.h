// Whether an address is this machine's own. Who listens on :: sees 127.0.0.1 as ::ffff:127.0.0.1.
#pragma once

#include <boost/asio/ip/address.hpp>

namespace foresail {

inline bool is_loopback_address(const boost::asio::ip::address& ip) {
  if (ip.is_v6() && ip.to_v6().is_v4_mapped())
    return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, ip.to_v6()).is_loopback();
  return ip.is_loopback();
}

}  // namespace foresail
