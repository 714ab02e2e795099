// Versions of a conversation's end: "Again" and "Edit" set the earlier end aside and keep it.
//
// `conversation.forks` holds {at, versions, chosen} for every message that has versions. The
// chosen version is in `conversation.messages` from `at` on; its place in `versions` is null.
// The other places hold {messages, forks}: what follows, with the forks further down.

/** The number of versions of the message at this index and the chosen one; null: only one. */
export function versionsAt(conversation, at) {
  const fork = forkAt(conversation, at);
  return fork ? { count: fork.versions.length, chosen: fork.chosen } : null;
}

/** Sets aside the messages from `at` on, and begins a new version. */
export function beginVersion(conversation, at) {
  let fork = forkAt(conversation, at);
  const earlier = cut(conversation, at);
  if (!fork) {
    fork = { at, versions: [null], chosen: 0 };
    conversation.forks.push(fork);
  }
  fork.versions[fork.chosen] = earlier;
  fork.chosen = fork.versions.push(null) - 1;
}

/** Shows another version of the message at this index, with all that follows it. */
export function chooseVersion(conversation, at, chosen) {
  const fork = forkAt(conversation, at);
  fork.versions[fork.chosen] = cut(conversation, at);
  const { messages, forks } = fork.versions[chosen];
  fork.versions[chosen] = null;
  fork.chosen = chosen;
  conversation.messages.push(...messages);
  conversation.forks.push(...forks);
}

/** Removes the messages from `at` on, and returns them with the forks further down. */
export function cut(conversation, at) {
  const messages = conversation.messages.splice(at);
  const forks = conversation.forks.filter((fork) => fork.at > at);
  conversation.forks = conversation.forks.filter((fork) => fork.at <= at);
  return { messages, forks };
}

/**
 * Adds messages after those that this tab shows. If another tab has added some in the meantime,
 * they become the earlier version.
 */
export function extend(conversation, shown, added) {
  const last = shown.at(-1)?.id;
  const at = last ? conversation.messages.findIndex((one) => one.id === last) + 1 : 0;
  const isMoved = last && !at; // the other tab shows another version
  if (conversation.messages.length > at) beginVersion(conversation, at);
  conversation.messages.push(...(isMoved ? shown.map((one) => ({ ...one, id: `${one.id}-` })) : []), ...added);
}

const forkAt = (conversation, at) => conversation.forks.find((fork) => fork.at === at);
