/* The tree of actors: who supervises whom, in which state, how often started again, how much mail waits. */

import {el, keyed, many, paintState, setText} from "./dom.js";

const ABOUT = {
  "server": "takes requests in and keeps the budget", "repository": "knows the models and loads them", "model": "one version, and the supervisor of its parts",
  "scheduler": "forms batches", "instance": "executes batches", "ensemble": "leads requests through its members", "cached door": "answers from the cache",
  "rate limiter": "grants resources to instances", "slots": "sequences that are alive", "front end": "a process that speaks to clients",
};

export class ActorsView {
  title = "Actors";

  constructor(content) {
    this.root = el("ul", {class: "tree"});
    content.append(
      el("h1", {}, "The actors of the server"),
      el("p", {class: "soft"}, "Each one works on its own mailbox. The one above starts it again if it dies, and answers what it held."),
      el("section", {class: "card", "aria-label": "Tree of actors"}, this.root));
  }

  update(state) { fill(this.root, [state.frame.tree]); }
}

function fill(list, nodes) {
  const seen = {};
  const named = nodes.map((node) => {
    const name = `${node.kind} ${node.name}`;
    seen[name] = (seen[name] || 0) + 1;
    return [`${name} ${seen[name]}`, node];
  });
  keyed(list, named, ([name]) => name, make, (item, [, node]) => item.fill(node));
}

function make([, node]) {
  const pill = el("span"), detail = el("span", {class: "soft"}), restarts = el("span", {class: "pill wait"});
  const mail = el("span"), meter = el("meter", {min: 0, "aria-hidden": "true"}), children = el("ul");
  const kind = el("span", {class: "kind", title: ABOUT[node.kind] || ""}, node.kind);
  const item = el("li", {}, el("div", {class: "row"}, kind, el("strong", {}, node.name), pill, detail, restarts, el("span", {class: "meter"}, meter, mail)), children);
  item.fill = (now) => {
    paintState(pill, now.state, now.state === "UNAVAILABLE" ? now.detail : "");
    setText(detail, now.detail);
    setText(restarts, many(now.restarts, "restart", "restarts"));
    restarts.hidden = !now.restarts;
    const hasMail = now.kind !== "front end" && now.kind !== "slots" && now.kind !== "server" && now.state;
    setText(mail, !hasMail ? "" : now.room === null ? `mailbox ${now.mail}` : `mailbox ${now.mail} of ${now.room}`);
    meter.hidden = !hasMail || now.room === null;
    if (now.room !== null) [meter.max, meter.value] = [now.room, now.mail];
    children.hidden = !now.children.length;
    fill(children, now.children);
  };
  return item;
}
