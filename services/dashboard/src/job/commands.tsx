// A sentence of the platform in which commands stand in backquotes: they become code that can be copied.
export function Commands({ text }: { text: string }) {
  return (
    <>
      {text.split(/`([^`]+)`/).map((part, index) => {
        const key = `${index}${part}`;
        return index % 2 === 1 ? <code key={key}>{part}</code> : <span key={key}>{part}</span>;
      })}
    </>
  );
}
