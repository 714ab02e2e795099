// IndexedDB with promises: the stores of the page, and transactions over them.
//
// `conversations` has whole conversations, `shelf` what the list of them shows, and `answers` the
// answers that are being written. Each record has an `id`.

const NAME = "quire";
const VERSION = 1;
const STORES = ["conversations", "shelf", "answers"];
const OPEN_MS = 10_000; // some browsers never answer while storage is forbidden

/** Opens the database. Rejects where the browser has none, or forbids it. */
export function openDatabase() {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("The browser's storage does not answer.")), OPEN_MS);
    const opening = indexedDB.open(NAME, VERSION); // throws where storage is forbidden
    opening.onupgradeneeded = () => {
      for (const store of STORES) opening.result.createObjectStore(store, { keyPath: "id" });
    };
    opening.onsuccess = () => {
      clearTimeout(timer);
      const db = opening.result;
      db.onversionchange = () => db.close(); // a later version of the page is open in another tab
      resolve(db);
    };
    opening.onerror = () => reject(opening.error);
  });
}

/** The result of one request of a transaction. */
export const resultOf = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

/**
 * Runs `work` with the stores by name, and resolves to its result once all of it is stored.
 * `work` may wait for requests of this transaction alone. If it throws, nothing is stored.
 */
export async function transaction(db, mode, work) {
  const tx = db.transaction(STORES, mode);
  const ended = new Promise((resolve, reject) => {
    tx.oncomplete = resolve;
    tx.onabort = () => reject(tx.error ?? new DOMException("The change was not stored.", "AbortError"));
  });
  ended.catch(() => {}); // it is awaited below, unless `work` fails first
  const stores = Object.fromEntries(STORES.map((name) => [name, tx.objectStore(name)]));
  let result;
  try {
    result = await work(stores);
  } catch (error) {
    try { tx.abort(); } catch { /* it has ended already */ }
    throw tx.error ?? error;
  }
  await ended;
  return result;
}
