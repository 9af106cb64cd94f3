// Makes every listener of a Node program listen on loopback, for one that has no option for it.
const net = require("node:net");
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (first, ...rest) {
  if (typeof first === "object" && first !== null && first.port !== undefined) {
    return listen.call(this, { ...first, host: "127.0.0.1" }, ...rest);
  }
  if (Number.isInteger(Number(first))) {
    const then = rest.filter((argument) => typeof argument === "function");
    return listen.call(this, { port: Number(first), host: "127.0.0.1" }, ...then);
  }
  return listen.call(this, first, ...rest);
};
