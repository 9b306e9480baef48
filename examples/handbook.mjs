// What the Node examples search: a few passages of the handbook. Put your own retrieval in their place.
export const QUESTIONS = [
  "How do I clean the lens, and what must never touch it?",
  "The rotation has slowed a little. What do I check first?",
  "How many coats does the gallery railing get?",
];

const PASSAGES = [
  ["lens-1", "Lens: the weekly cleaning", "Clean the lens every Monday, in daylight and with the drive stopped. Dust it first with the brush, then wipe each prism with the damp linen cloth. Never use paper, wool or anything with ammonia: all three scratch or cloud the old glass."],
  ["drive-2", "Drive: when the rotation slows", "When the rotation slows, check the rollers first. Cold grease is the usual cause; after that look at the motor's brushes, and only then at the belt."],
  ["paint-3", "Paint: the gallery railing", "The railing gets four coats: two of red zinc primer on bright metal, one of micaceous undercoat, one of black gloss."],
  ["log-1", "Log: what is written down", "Write the log in ink, at eight in the morning and at eight in the evening. Write down what you saw and not what you suppose."],
].map(([id, title, text]) => ({ id, title, url: `handbook/${id}`, text }));

/** The passages that share the most words with the query, the best one first. */
export function search(query) {
  const words = new Set(query.toLowerCase().match(/\w{4,}/g));
  const score = (passage) => (passage.text + passage.title).toLowerCase().match(/\w+/g).filter((w) => words.has(w)).length;
  return [...PASSAGES].sort((a, b) => score(b) - score(a)).slice(0, 3);
}
