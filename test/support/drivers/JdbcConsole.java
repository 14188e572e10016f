import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Rules about reading the console with the JDBC driver: the arguments are its URL, user and password,
 * then the topics of SHOW. Reports on standard output as test/support/programs.ts reads it.
 */
public class JdbcConsole {
  private interface Rule {
    void check() throws Exception;
  }

  private static String[] login;
  private static List<String> topics;

  public static void main(String[] args) {
    login = Arrays.copyOf(args, 3);
    topics = Arrays.asList(args).subList(3, args.length);
    Map<String, Rule> rules = new LinkedHashMap<>();
    rules.put("every SHOW is read by the extended protocol, in text", () -> all("prepareThreshold=5"));
    rules.put("every SHOW is read from a named statement, in binary", () -> all("prepareThreshold=-1"));
    rules.put("every SHOW is read by the simple protocol", () -> all("preferQueryMode=simple"));
    rules.put("what is said of the connection and around transactions is answered", JdbcConsole::around);
    rules.put("an error leaves the connection as it was", JdbcConsole::errors);
    System.out.println("plan " + rules.size());
    for (Map.Entry<String, Rule> entry : rules.entrySet()) {
      try {
        entry.getValue().check();
        System.out.println("ok " + entry.getKey());
      } catch (Throwable problem) {
        System.out.println("not ok " + entry.getKey());
        problem.printStackTrace(System.out);
      }
    }
  }

  private static Connection connect(String options) throws SQLException {
    String all = "user=" + login[1] + "&password=" + login[2] + "&" + options;
    return DriverManager.getConnection(login[0] + "?" + all);
  }

  private static void isTrue(boolean fact, String what) {
    if (!fact) throw new AssertionError(what);
  }

  private static void all(String options) throws Exception {
    try (Connection connection = connect(options)) {
      for (String topic : topics) {
        for (int turn = 0; turn < 3; turn++) {
          try (Statement statement = connection.createStatement();
              ResultSet rows = statement.executeQuery("SHOW " + topic)) {
            read(topic, rows);
          }
        }
      }
    }
  }

  /** Every value is of the class that belongs to its column's type. */
  private static void read(String topic, ResultSet rows) throws SQLException {
    ResultSetMetaData about = rows.getMetaData();
    int count = 0;
    while (rows.next()) {
      count++;
      for (int column = 1; column <= about.getColumnCount(); column++) {
        Object value = rows.getObject(column);
        if (value == null) continue;
        String place = topic + "." + about.getColumnName(column);
        isTrue(classOf(about.getColumnType(column), place).isInstance(value), place + " is " + value);
      }
    }
    boolean mayBeEmpty = topic.matches("(ACTIVE_SOCKETS|DNS_.*|PEER.*|SERVERS)( BY PROCESS)?");
    isTrue(count > 0 || mayBeEmpty, topic + " has no rows");
  }

  private static Class<?> classOf(int type, String place) {
    switch (type) {
      case Types.INTEGER: return Integer.class;
      case Types.BIGINT: return Long.class;
      case Types.NUMERIC: return BigDecimal.class;
      case Types.VARCHAR: return String.class;
      case Types.BINARY: return byte[].class;
      default: throw new AssertionError(place + " is of the type " + type);
    }
  }

  private static void around() throws Exception {
    try (Connection connection = connect("ApplicationName=monitor")) {
      isTrue(connection.isValid(5), "valid");
      isTrue(connection.getMetaData().getDatabaseProductVersion().startsWith("1.25"), "version");
      connection.setAutoCommit(false);
      try (Statement statement = connection.createStatement();
          ResultSet rows = statement.executeQuery("SHOW VERSION")) {
        isTrue(rows.next(), "a version");
      }
      connection.commit();
      connection.rollback();
      connection.setAutoCommit(true);
      isTrue(connection.getTransactionIsolation() == Connection.TRANSACTION_READ_COMMITTED, "level");
      connection.setReadOnly(true);
      connection.setReadOnly(false);
    }
  }

  private static void errors() throws Exception {
    try (Connection connection = connect("prepareThreshold=1")) {
      for (int turn = 0; turn < 3; turn++) {
        try (Statement statement = connection.createStatement()) {
          statement.execute("SHOW NOTHING");
          throw new AssertionError("no error");
        } catch (SQLException error) {
          isTrue("08P01".equals(error.getSQLState()), error.getSQLState());
        }
        try (Statement statement = connection.createStatement();
            ResultSet rows = statement.executeQuery("SHOW STATE")) {
          isTrue(rows.next(), "a state");
        }
      }
    }
  }
}
